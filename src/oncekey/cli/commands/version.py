"""`oncekey version`."""

from __future__ import annotations

import platform
import sqlite3

import click

from oncekey import __version__
from oncekey.cli.command_input import json_option
from oncekey.cli.output import Output


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Say which versions are at work.

    The release of oncekey, the Python it runs on, and the SQLite library it would use: what a
    bug report needs.

    \b
    Example:
      oncekey version --json
    """
    out = Output(as_json=as_json)
    found = {
        "oncekey": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if as_json:
        out.data(found)
    else:
        out.rows(found)
