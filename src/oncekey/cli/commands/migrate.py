"""`oncekey migrate`."""

from __future__ import annotations

from typing import Any

import click

from oncekey.cli.command_input import json_option, url_argument
from oncekey.cli.output import Output
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.store_access import inspect, store_function
from oncekey.stores.inspection import Inspection


@click.command()
@url_argument
@click.option(
    "--sql",
    "as_sql",
    is_flag=True,
    help="Print the SQL of every step instead of running it. PostgreSQL only; needs no server.",
)
@click.option("--outbox", is_flag=True, help="Make the table of the outbox too.")
@json_option
def migrate(url: str, as_sql: bool, outbox: bool, as_json: bool) -> None:
    """Bring a store's tables up to date, or make a new store.

    Applies the migrations this release knows and the store lacks, in one transaction, and says
    what version it was and is at, and what the store can promise. The application does the same
    when it opens the store; run this first where deploying and migrating are separate steps, or
    the application's role may not create tables (then give its URL migrate=false). A second run
    changes nothing, and several hosts may run it at once.

    The outbox is a table of its own, which only those need who publish messages from their
    transactions: --outbox makes it, or brings it up to date. Give it with every later run too.

    With --sql the script goes to stdout, for a DBA to read and run: the URL's schema and
    retention decide what is in it. It skips the steps that were done before, so it too may be run
    twice, on a database of any age.

    \b
    Examples:
      oncekey migrate sqlite:///payments.db
      oncekey migrate "postgresql://owner@db/shop?schema=oncekey"
      oncekey migrate "postgresql://owner@db/shop" --outbox
      oncekey migrate "postgresql://?schema=oncekey" --sql | psql -v ON_ERROR_STOP=1 shop
    """
    out = Output(as_json=as_json)
    if as_sql:
        script: str = store_function(url, "migration_script")(url)
        if outbox:
            script += "\n" + store_function(url, "outbox_script")(url)
        if as_json:
            out.data({"store": redact_url(url), "sql": script})
        else:
            out.text(script)
        return
    run = store_function(url, "migrate")
    make_outbox = store_function(url, "create_outbox") if outbox else None
    before = inspect(url)
    with out.progress("migrating"):
        run(url)
        if make_outbox is not None:
            make_outbox(url)
    after = inspect(url)
    if as_json:
        out.data({**_as_data(url, before, after), **({"outbox": True} if outbox else {})})
    else:
        made = {"outbox": "its table is there"} if outbox else {}
        out.rows({**_rows(url, before, after), **made})


def _applied(before: Inspection, after: Inspection) -> list[str]:
    return [after.applied[number] for number in sorted(after.applied.keys() - before.applied)]


def _as_data(url: str, before: Inspection, after: Inspection) -> dict[str, Any]:
    return {
        "store": redact_url(url),
        "before": before.version,
        "version": after.version,
        "applied": _applied(before, after),
        "guarantee": after.guarantee.level.label,
        "reason": after.guarantee.reason,
        "clock": after.guarantee.clock.value,
    }


def _rows(url: str, before: Inspection, after: Inspection) -> dict[str, str]:
    return {
        "store": redact_url(url),
        "before": str(before.version) if before.exists else "there was no store",
        "version": str(after.version),
        "applied": ", ".join(_applied(before, after)) or "nothing, it was up to date",
        "guarantee": f"{after.guarantee.level.label}: {after.guarantee.reason}",
        "clock": after.guarantee.clock.value,
    }
