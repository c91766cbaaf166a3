"""What a command is given: options that several commands share, objects of the user's code, texts
from files and stdin, and the answers of whoever sits at the terminal.

Questions go to stderr, so that stdout has the result only. Where nobody can answer, the command
must be given everything, and refuses otherwise.
"""

from __future__ import annotations

import getpass
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from oncekey.cli.output import UsageProblem
from oncekey.core.duration import human, microseconds
from oncekey.core.errors import ConfigurationError

# The store of commands that are given no URL.
STORE_ENV = "ONCEKEY_STORE"
# If it is set, unexpected errors show where they came from.
TRACEBACK_ENV = "ONCEKEY_TRACEBACK"
ANSWER_MAX_BYTES: Final = 1_048_576

# --- options --------------------------------------------------------------------------------------

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
by_option = click.option("--by", metavar="WHO", help="Who decides; goes into the record.")
why_option = click.option("--why", metavar="TEXT", help="Why; goes into the record.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


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


# --- imports and texts ----------------------------------------------------------------------------


def import_object(name: str) -> Any:
    """The object of the user's code that MODULE:NAME names; modules in the current folder are found
    too, as with `python -m`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageProblem(f"{name!r} is not MODULE:NAME, such as shop.main:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may raise anything
        reason = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise UsageProblem(f"{name} cannot be imported: {reason}") from error
    return found


@contextmanager
def extra(name: str, what: str, packages: Collection[str]) -> Iterator[None]:
    """While this is open, an import that misses one of the extra's packages is a usage problem:
    `what` needs the package, and the text says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        missing = (error.name or "").replace("_", "-")
        raise UsageProblem(f'{what} needs {missing}: pip install "oncekey[{name}]"') from error


def read_bytes(option: str, text: str) -> bytes:
    """The text, or the content of the file that `@FILE` names, or stdin for `-`."""
    if text == "-":
        content = sys.stdin.buffer.read(ANSWER_MAX_BYTES + 1)
    elif text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                content = file.read(ANSWER_MAX_BYTES + 1)
        except OSError as error:
            raise UsageProblem(f"{option} {text}: {error.strerror}") from error
    else:
        content = text.encode(errors="surrogateescape")
    if len(content) > ANSWER_MAX_BYTES:
        raise UsageProblem(f"{option}: longer than {ANSWER_MAX_BYTES:,} bytes")
    return content


# --- questions ------------------------------------------------------------------------------------


def can_ask() -> bool:
    """True if somebody can answer."""
    return sys.stdin.isatty()


def ask(question: str) -> bool:
    """True if the answer is yes."""
    return click.confirm(question, default=False, err=True)


def ask_text(question: str, default: str | None = None) -> str:
    """The text that is typed in, not empty."""
    return str(click.prompt(question, default=default, err=True))


def user_name() -> str | None:
    """The name that the system knows the user by, to be offered as an answer."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def confirm(question: str, *, if_meant: str, yes: bool, as_json: bool) -> None:
    """Return if --yes was given or the answer is yes, abort the command otherwise. `if_meant` says
    when --yes may be given, for those whom nobody can ask."""
    if yes:
        return
    if as_json or not can_ask():
        raise click.UsageError(f"nobody can be asked here: give --yes if {if_meant}")
    if not ask(question):
        raise click.Abort


class Reason(NamedTuple):
    """Who decides, and why; `asks` if that is to be confirmed."""

    by: str
    why: str
    asks: bool


def reason_of(by: str | None, why: str | None, *, yes: bool, as_json: bool) -> Reason:
    """The reason, asked for where it was not given and somebody can answer."""
    context = click.get_current_context()
    asks = not yes
    is_anybody_there = can_ask() and not as_json
    if asks and not is_anybody_there:
        how = "--json does not ask" if as_json else "there is no terminal to ask at"
        raise click.UsageError(f"{how}: give --yes if it is meant", context)
    missing = [name for name, text in (("--by", by), ("--why", why)) if not text]
    if missing and not is_anybody_there:
        raise click.UsageError(f"give {' and '.join(missing)}: it goes into the record", context)
    by = by or ask_text("Who decides?", user_name())
    why = why or ask_text("Why?")
    return Reason(by, why, asks)
