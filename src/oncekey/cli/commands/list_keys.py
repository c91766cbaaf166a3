"""`oncekey list`, and --watch: the newest page, read again and again until a signal comes."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from oncekey.cli.command_input import json_option, url_argument
from oncekey.cli.key_report import listing_table
from oncekey.cli.output import Output, counted, error_line, printable, rich_table, utc
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.cli.store_access import has_records, has_records_in_time, open_store, warn_of_move
from oncekey.core.errors import StoreUnavailable
from oncekey.core.search import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, Cursor, Query
from oncekey.core.store import Store
from oncekey.engine.keys.administration import list_keys as page_of_keys
from oncekey.engine.keys.administration import run_plan
from oncekey.engine.keys.key_list import STATES, KeySummary, Listing, query_of
from oncekey.engine.keys.key_status import time_of

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_DEFAULT: Final = "2"
EVERY_MIN_SECONDS: Final = 0.2
EVERY_MAX_SECONDS: Final = 3_600.0


def every_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Reads the seconds of --watch."""
    if value is None:
        return None
    try:
        seconds = float(value.removesuffix("s"))
    except ValueError as error:
        where = "; put the URL before --watch" if "://" in value else ""
        raise click.BadParameter(f"it takes seconds{where}", context, parameter) from error
    if not EVERY_MIN_SECONDS <= seconds <= EVERY_MAX_SECONDS:
        limits = f"{EVERY_MIN_SECONDS:g} to {EVERY_MAX_SECONDS:g}"
        raise click.BadParameter(f"{value} is not from {limits} seconds", context, parameter)
    return seconds


@click.command("list")
@url_argument
@click.option(
    "--state",
    type=click.Choice(list(STATES)),
    multiple=True,
    help="Only keys in this state; may be repeated.",
)
@click.option("--scope", help="Only keys of this caller.")
@click.option("--operation", help="Only keys of this operation; of HTTP requests it is `http`.")
@click.option("--route", help='Only requests whose route begins so: "POST /charges".')
@click.option("--key", help="Only this key, where raw keys are stored; see also show --key.")
@click.option("--tag", default="", help="Only keys whose name in logs begins so.")
@click.option("--expired", is_flag=True, help="Also keys whose time is over.")
@click.option(
    "--limit",
    type=click.IntRange(1, PAGE_LIMIT_MAX),
    default=PAGE_LIMIT_DEFAULT,
    show_default=True,
    help="Keys per page.",
)
@click.option("--after", metavar="CURSOR", help="Go on where an earlier page has ended.")
@click.option("--all", "all_pages", is_flag=True, help="Go on page by page until the last one.")
@click.option(
    "--watch",
    is_flag=False,
    flag_value=EVERY_DEFAULT,
    callback=every_option,
    metavar="[SECONDS]",
    help=f"Look again, every {EVERY_DEFAULT} seconds if not told otherwise, until interrupted.",
)
@json_option
def list_keys(
    url: str,
    state: tuple[str, ...],
    scope: str | None,
    operation: str | None,
    route: str | None,
    key: str | None,
    tag: str,
    expired: bool,
    limit: int,
    after: str | None,
    all_pages: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """List keys, newest claim first.

    Every option given must match. A page looks at the newest 20,000 claims at most, whether they
    match or not, so that its cost is bounded whatever is stored; the last line says how far it has
    looked and how to go on. Nothing is changed, and no secret is needed.

    With --watch the page is drawn again until Ctrl-C; in a pipe it is printed again when it has
    changed, and with --json each time as one document on a line of its own. With --all --json each
    page is such a document. URL may be left out if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey list sqlite:///payments.db --state unknown
      oncekey list postgresql://support@db/shop --scope acct_1 --route "POST /charges"
      oncekey list --state pending --state unknown --watch 5
      oncekey list --operation charge --all --json
    """
    if watch is not None and (all_pages or after):
        raise click.UsageError("--watch shows the newest page; it goes with no --all or --after")
    query = query_of(
        state=state,
        scope=scope,
        operation=operation,
        route=route,
        key=key,
        tag=tag,
        expired=expired,
    )
    out = Output(as_json=as_json)
    # Refuses what is no store, or is of an older release.
    found = has_records(url) if watch is None else has_records_in_time(url, watch)
    if found is None:  # a signal came while the store was away
        return
    with closing(open_store(url)) as store:
        if watch is not None:
            with suppress(StoreUnavailable):  # the loop says it, and goes on
                warn_of_move(store)
            _watch(out, store, query, limit, watch)
            return
        warn_of_move(store)
        if all_pages:
            _print_all(out, store, query, limit, after)
        else:
            listing = run_plan(store, page_of_keys(query, limit, after))
            _print(out, listing, query, limit, from_newest=after is None)


def _print(out: Output, listing: Listing, query: Query, limit: int, *, from_newest: bool) -> None:
    if out.as_json:
        out.data(_listing_data(listing))
        return
    if listing.keys:
        out.table(*listing_table(listing))
    out.line(_reach(listing, limit, from_newest=from_newest))
    if query.key is not None and not listing.keys:
        out.line("keys are found here only where raw keys are stored: oncekey show --key KEY")


def _print_all(out: Output, store: Store, query: Query, limit: int, after: str | None) -> None:
    looked_at = count = 0
    with out.progress("looking") as show_progress:
        while True:
            listing = run_plan(store, page_of_keys(query, limit, after))
            count += len(listing.keys)
            looked_at += listing.looked_at
            show_progress(f"{count:,} keys so far")
            _print_page(out, listing)
            after = listing.next
            if after is None:
                break
    if not out.as_json:
        out.line(f"{counted(count, 'key')}; looked at all claims")


def _print_page(out: Output, listing: Listing) -> None:
    if out.as_json:
        out.event(_listing_data(listing))
    elif listing.keys:
        out.table(*listing_table(listing))


def _reach(listing: Listing, limit: int, *, from_newest: bool) -> str:
    """How many keys the listing has, and how far it has looked: an empty page is not an empty
    store."""
    count = len(listing.keys)
    keys = counted(count, "key")
    if listing.next is None:
        rest = "" if from_newest else " that are older than --after"
        return f"{keys}; looked at all claims{rest}"
    back = f"back to {utc(time_of(Cursor.parse(listing.next).fence))}"
    if count == limit:
        return f"{keys}, {back}; more: --after {listing.next}"
    which = "the newest " if from_newest else ""
    return (
        f"{keys}; looked at {which}{listing.looked_at:,} claims, {back}; "
        f"go on with --after {listing.next}"
    )


def _listing_data(listing: Listing) -> dict[str, Any]:
    """The listing for --json; `back_to` is how far it has looked, null if at everything."""
    fields = KeySummary.__dataclass_fields__
    return {
        "keys": [{name: getattr(key, name) for name in fields} for key in listing.keys],
        "now": listing.now,
        "looked_at": listing.looked_at,
        "back_to": time_of(Cursor.parse(listing.next).fence) if listing.next else None,
        "next": listing.next,
    }


# --- --watch --------------------------------------------------------------------------------------


def _watch(out: Output, store: Store, query: Query, limit: int, every: float) -> None:
    """Shows the page, and again each time it has changed. A store that is down is reported, and
    asked again."""
    with stop_on_signal() as stop:
        if out.console.is_terminal and not out.as_json:
            _draw(out, store, query, limit, every, stop)
        else:
            _print_changes(out, store, query, limit, every, stop)


def _draw(
    out: Output, store: Store, query: Query, limit: int, every: float, stop: StopRequest
) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=out.console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while not stop.requested:
            try:
                listing = run_plan(store, page_of_keys(query, limit, None))
                live.update(_drawing(listing, limit), refresh=True)
            except StoreUnavailable as error:
                live.update(Text(printable(str(error)), "red"), refresh=True)
            stop.wait(every)


def _drawing(listing: Listing, limit: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    below = Text(f"{utc(listing.now)}  {_reach(listing, limit, from_newest=True)}", "dim")
    return Group(rich_table(*listing_table(listing)), below) if listing.keys else below


def _print_changes(
    out: Output, store: Store, query: Query, limit: int, every: float, stop: StopRequest
) -> None:
    before: Listing | None = None
    while not stop.requested:
        try:
            listing = run_plan(store, page_of_keys(query, limit, None))
        except StoreUnavailable as error:
            error_line(f"{error}; it is tried again in {every:g} s")
        else:
            if before is None or listing.keys != before.keys:
                _print_change(out, listing, limit)
            before = listing
        stop.wait(every)


def _print_change(out: Output, listing: Listing, limit: int) -> None:
    if not out.as_json:
        out.line(utc(datetime.now(UTC)))
    _print_page(out, listing)
    if not out.as_json:
        out.line(_reach(listing, limit, from_newest=True))
