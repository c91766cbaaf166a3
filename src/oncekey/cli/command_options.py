"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable

import click

from oncekey.core.duration import human, microseconds
from oncekey.core.errors import ConfigurationError

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else."
)
url_argument = click.argument("url", metavar="URL")


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
