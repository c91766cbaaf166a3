"""The `oncekey` command group. Turns every error into one line and an exit code.

Every command starts by importing this: what only some commands need, their own modules import.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import click

from oncekey import ConfigurationError, InvalidKey, OncekeyError, __version__
from oncekey.cli.command_options import STORE_ENV, TRACEBACK_ENV
from oncekey.cli.command_table import CommandGroup
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.open_store import UsageProblem
from oncekey.cli.output import error_line, survive_any_encoding
from oncekey.cli.redact import remember_passwords

_NAME = "oncekey"


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 done, 1 it did not work, 2 wrong usage, 3 no such key, 4 doctor or "
        "verify found something broken, 5 the key changed after it was shown, 130 interrupted."
    ),
)
@click.version_option(__version__, prog_name=_NAME)
@click.pass_context
def cli(context: click.Context) -> None:
    """Operations with side effects, safe to retry.

    \b
    URL names a store:  sqlite:///relative.db   sqlite:////absolute/path.db
                        postgresql://user@host/database?schema=oncekey
                        redis://host:6379/0     etcd://h1,h2,h3/prefix
                        moving://OLD,NEW: two stores, while keys move
    It may be left out if ONCEKEY_STORE is set.
    Every command has --help with an example, and --json for scripts.
    Start with:  oncekey demo
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    # Library logs are for applications; a command prints what matters itself.
    logging.getLogger().addHandler(logging.NullHandler())
    remember_passwords((*argv, os.environ.get(STORE_ENV, "")))
    survive_any_encoding()
    try:
        code = cli.main(list(argv), prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Abort:
        error_line("interrupted")
        return ExitCode.INTERRUPTED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _NAME
        error_line(f"{error.format_message()} (see {path} --help)")
        return ExitCode.USAGE
    except (UsageProblem, InvalidKey, ConfigurationError) as error:
        error_line(str(error))
        return ExitCode.USAGE
    except (OncekeyError, OSError) as error:
        error_line(str(error))
        return ExitCode.FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK_ENV):
            raise
        error_line(f"a bug: {type(error).__name__}: {error} ({TRACEBACK_ENV}=1 tells where)")
        return ExitCode.FAILED
    return code if isinstance(code, int) else ExitCode.OK
