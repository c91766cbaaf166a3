"""`oncekey stats`."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import click

from oncekey.cli.command_options import json_option, url_argument
from oncekey.cli.open_store import has_records, open_store
from oncekey.cli.output import Output
from oncekey.cli.redact import redact_url
from oncekey.cli.stats_report import COLUMNS, stats_rows, warnings
from oncekey.engine.keys.administration import measure_store, note_of_move, run_plan


@click.command()
@url_argument
@json_option
def stats(url: str, as_json: bool) -> None:
    """Say how a store is doing.

    How much it holds and where that leads to, how much there is to sweep, how long keys have been
    in flight, how many wait for a decision; and a warning for what is off. The cost is bounded: it
    counts to 10,000 at most, and looks at the newest 20,000 claims. Nothing is changed, and no
    secret is needed. URL may be left out if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey stats sqlite:///payments.db
      oncekey stats postgresql://support@db/shop --json
    """
    out = Output(as_json=as_json)
    has_records(url)  # refuses what is no store, or is of an older release
    with closing(open_store(url)) as store:
        found = run_plan(store, measure_store())
        move = run_plan(store, note_of_move())
    off = [*warnings(found), *([move] if move else [])]
    if as_json:
        out.data({"store": redact_url(url), **dataclasses.asdict(found), "warnings": off})
        return
    out.table(COLUMNS, stats_rows(found), {})
    for warning in off:
        out.line(f"WARNING: {warning}")
