"""`oncekey list`."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import click

from oncekey import Listing, StoreUnavailable
from oncekey.cli.command_options import json_option, url_argument
from oncekey.cli.key_table import listing_data, listing_table, reach
from oncekey.cli.key_watch import EVERY_DEFAULT, every_option, watch_listing
from oncekey.cli.open_store import has_records, has_records_in_time, open_store, warn_of_move
from oncekey.cli.output import Output
from oncekey.core.search import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, Query
from oncekey.core.store import Store
from oncekey.engine.administration import list_keys as page_of_keys
from oncekey.engine.administration import run_plan
from oncekey.engine.key_list import STATES, query_of


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
            watch_listing(out, store, query, limit, watch)
            return
        warn_of_move(store)
        if all_pages:
            _print_all(out, store, query, limit, after)
        else:
            listing = run_plan(store, page_of_keys(query, limit, after))
            _print(out, listing, query, limit, from_newest=after is None)


def _print(out: Output, listing: Listing, query: Query, limit: int, *, from_newest: bool) -> None:
    if out.as_json:
        out.data(listing_data(listing))
        return
    if listing.keys:
        out.table(*listing_table(listing))
    out.line(reach(listing, limit, from_newest=from_newest))
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
        out.line(f"{count:,} {'key' if count == 1 else 'keys'}; looked at all claims")


def _print_page(out: Output, listing: Listing) -> None:
    data: dict[str, Any] | None = listing_data(listing) if out.as_json else None
    if data is not None:
        out.event(data)
    elif listing.keys:
        out.table(*listing_table(listing))
