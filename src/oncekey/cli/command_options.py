"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable

import click

from oncekey.core.duration import human, microseconds
from oncekey.core.errors import ConfigurationError

# The store of commands that are given no URL.
STORE_ENV = "ONCEKEY_STORE"
# If it is set, unexpected errors show where they came from.
TRACEBACK_ENV = "ONCEKEY_TRACEBACK"

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else."
)


def required_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The URL, of the command line or of the environment."""
    if not value:
        raise click.UsageError(f"no store: give its URL, or set {STORE_ENV}", context)
    return value


url_argument = click.argument(
    "url", metavar="[URL]", required=False, envvar=STORE_ENV, callback=required_url
)


def duration(
    least: int, most: int
) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """A callback that reads a duration such as 10m as whole microseconds."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        try:
            us = microseconds(value, name="duration")
        except ConfigurationError as error:
            message = f"{value} is not a duration such as 30s, 10m or 1h30m"
            raise click.BadParameter(message, context, parameter) from error
        if not least <= us <= most:
            raise click.BadParameter(
                f"{value} is not from {human(least)} to {human(most)}", context, parameter
            )
        return us

    return read
