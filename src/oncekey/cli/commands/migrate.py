"""`oncekey migrate`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import click

from oncekey.cli.commands.options import json_option, url_argument
from oncekey.cli.opening import file_of, open_store, peek
from oncekey.cli.output import Output, redacted


@click.command()
@url_argument
@json_option
def migrate(url: str, as_json: bool) -> None:
    """Bring a store's tables up to date, or make a new store.

    Applies the migrations this release knows and the store lacks, in one transaction, and says
    what version it is at. The application does the same when it opens the store; run this first
    where deploying and migrating are separate steps, or to see what a store can promise.
    A second run changes nothing.

    \b
    Example:
      oncekey migrate sqlite:///payments.db
    """
    out = Output(as_json=as_json)
    before = _applied(url)
    # The store itself, not Once: a new store must be bound to its secret by the application.
    with closing(open_store(url)) as store:
        guarantee = store.guarantee
    after = _applied(url)
    done: dict[str, Any] = {
        "store": redacted(url),
        "version": max(after, default=None),
        "applied": [after[version] for version in sorted(after.keys() - before.keys())],
        "guarantee": guarantee.level.label,
        "reason": guarantee.reason,
    }
    if as_json:
        out.data(done)
        return
    out.facts(
        {
            "store": done["store"],
            "version": str(done["version"] or "not told by this store"),
            "applied": ", ".join(done["applied"]) or "nothing, it was up to date",
            "guarantee": f"{guarantee.level.label}: {guarantee.reason}",
        }
    )


def _applied(url: str) -> dict[int, str]:
    """The migrations an SQLite file lists, by version; none for other stores or no file yet."""
    path = file_of(url)
    if path is None or not path.exists():
        return {}
    try:
        with closing(peek(path)) as file:
            return dict(file.execute("SELECT version, name FROM oncekey_migrations"))
    except sqlite3.Error:
        return {}  # not ours yet, or not a database: opening the store says it better
