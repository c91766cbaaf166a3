"""`oncekey sweep`."""

from __future__ import annotations

from contextlib import closing

import click

from oncekey.cli.commands.options import json_option, url_argument
from oncekey.cli.opening import has_records, open_store
from oncekey.cli.output import Output, redacted
from oncekey.core.contract import SWEEP_LIMIT_DEFAULT

LIMIT_MAX = 100_000


@click.command()
@url_argument
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=SWEEP_LIMIT_DEFAULT,
    show_default=True,
    help="Records to remove per batch: one batch is one short transaction.",
)
@click.option("--once", is_flag=True, help="Remove one batch and stop.")
@json_option
def sweep(url: str, limit: int, once: bool, as_json: bool) -> None:
    """Remove records nothing needs any more.

    A record is removed when its keep time and its audit time are over; never while it is in
    flight or still answers retries. Run it every ten minutes or so, from cron or a timer; it may
    run beside the application. It stops when nothing is left.

    \b
    Examples:
      oncekey sweep sqlite:///payments.db
      oncekey sweep sqlite:////var/lib/shop/payments.db --limit 500 --json
    """
    out = Output(as_json=as_json)
    removed = batches = 0
    # The store itself, not Once: sweeping needs no secret, and must not bind one.
    if has_records(url):
        with closing(open_store(url)) as store, out.progress("sweeping") as tell:
            while count := store.sweep(limit):
                removed += count
                batches += 1
                tell(f"sweeping: {removed:,} removed")
                if once:
                    break
    if as_json:
        out.data({"store": redacted(url), "removed": removed, "batches": batches})
    else:
        word = "record" if removed == 1 else "records"
        out.line(f"{removed:,} {word} removed from {redacted(url)}")
