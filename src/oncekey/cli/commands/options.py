"""The options several commands share."""

from __future__ import annotations

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else."
)
url_argument = click.argument("url", metavar="URL")
