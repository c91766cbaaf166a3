"""`oncekey list --watch`: the newest page, read again and again until a signal comes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from oncekey import Listing, StoreUnavailable
from oncekey.cli.key_table import listing_data, listing_table, reach
from oncekey.cli.output import Output, error_line, printable, rich_table
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.core.search import Query
from oncekey.core.store import Store
from oncekey.engine.keys.administration import list_keys, run_plan

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


def watch_listing(out: Output, store: Store, query: Query, limit: int, every: float) -> None:
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
                listing = run_plan(store, list_keys(query, limit, None))
                live.update(_drawing(listing, limit), refresh=True)
            except StoreUnavailable as error:
                live.update(Text(printable(str(error)), "red"), refresh=True)
            stop.wait(every)


def _drawing(listing: Listing, limit: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    at = f"{listing.now:%Y-%m-%d %H:%M:%S} UTC  "
    below = Text(at + reach(listing, limit, from_newest=True), "dim")
    return Group(rich_table(*listing_table(listing)), below) if listing.keys else below


def _print_changes(
    out: Output, store: Store, query: Query, limit: int, every: float, stop: StopRequest
) -> None:
    before: Listing | None = None
    while not stop.requested:
        try:
            listing = run_plan(store, list_keys(query, limit, None))
        except StoreUnavailable as error:
            error_line(f"{error}; it is tried again in {every:g} s")
        else:
            if before is None or listing.keys != before.keys:
                _print_change(out, listing, limit)
            before = listing
        stop.wait(every)


def _print_change(out: Output, listing: Listing, limit: int) -> None:
    if out.as_json:
        out.event(listing_data(listing))
        return
    out.line(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
    if listing.keys:
        out.table(*listing_table(listing))
    out.line(reach(listing, limit, from_newest=True))
