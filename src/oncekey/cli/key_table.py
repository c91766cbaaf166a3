"""The table of keys that `list` prints, and the sentence about how far it has looked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oncekey import KeyStatus, KeySummary, Listing
from oncekey.cli.key_report import span
from oncekey.core.search import Cursor
from oncekey.engine.keys.key_status import time_of

COLUMNS = (
    "tag", "state", "age", "attempt", "scope", "operation", "route", "key", "status",
)  # fmt: skip
STATE_STYLES = {
    "pending": "yellow",
    "succeeded": "green",
    "failed": "red",
    "unknown": "bold red",
    "freed": "cyan",
}
_ALWAYS = 4  # columns that are shown even if they are empty

Table = tuple[Sequence[str], list[list[str]], dict[str, str]]


def listing_table(listing: Listing) -> Table:
    """The columns, the rows and the styles of words; columns in which nothing stands are left
    out."""
    return _table([_cells(key, listing.now) for key in listing.keys])


def status_table(keys: Sequence[KeyStatus]) -> Table:
    """The same of keys that were looked at one by one."""
    return _table([_cells(key, key.seen_at) for key in keys])


def _table(rows: list[list[str]]) -> Table:
    used = [
        number
        for number in range(len(COLUMNS))
        if number < _ALWAYS or any(row[number] for row in rows)
    ]
    columns = [COLUMNS[number] for number in used]
    return columns, [[row[number] for number in used] for row in rows], STATE_STYLES


def _cells(key: KeySummary | KeyStatus, now: datetime) -> list[str]:
    return [
        key.tag,
        f"{key.state}, expired" if key.expired else key.state,
        span(max(0.0, (now - key.created_at).total_seconds())),
        str(key.attempt),
        key.scope,
        key.operation,
        f"{key.route} ({key.name})" if key.name else key.route,
        key.key,
        str(key.http_status or ""),
    ]


def reach(listing: Listing, limit: int, *, from_newest: bool) -> str:
    """How many keys there are in the listing, and how far it has looked: an empty page is not
    an empty store."""
    count = len(listing.keys)
    keys = f"{count:,} {'key' if count == 1 else 'keys'}"
    if listing.next is None:
        rest = "" if from_newest else " that are older than --after"
        return f"{keys}; looked at all claims{rest}"
    back = f"back to {time_of(Cursor.parse(listing.next).fence):%Y-%m-%d %H:%M:%S} UTC"
    if count == limit:
        return f"{keys}, {back}; more: --after {listing.next}"
    which = "the newest " if from_newest else ""
    return (
        f"{keys}; looked at {which}{listing.looked_at:,} claims, {back}; "
        f"go on with --after {listing.next}"
    )


def listing_data(listing: Listing) -> dict[str, Any]:
    """The listing for --json; `back_to` is how far it has looked, null if at everything."""
    fields = KeySummary.__dataclass_fields__
    return {
        "keys": [{name: getattr(key, name) for name in fields} for key in listing.keys],
        "now": listing.now,
        "looked_at": listing.looked_at,
        "back_to": time_of(Cursor.parse(listing.next).fence) if listing.next else None,
        "next": listing.next,
    }
