"""The `oncekey` command: which commands there are, and how each run ends.

The module of a command is imported when the command runs, and not for help, completion or a
mistyped name. So a command starts without what the others need, and a package that cannot be
imported takes down only the commands that use it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import click

from oncekey import __version__
from oncekey.cli.command_input import STORE_ENV, TRACEBACK_ENV
from oncekey.cli.output import ExitCode, UsageProblem, error_line, survive_any_encoding
from oncekey.cli.password_redaction import remember_passwords
from oncekey.core.errors import ConfigurationError, InvalidKey, OncekeyError

_NAME: Final = "oncekey"
_PACKAGE: Final = "oncekey.cli.commands"

# The first sentence of each command's help. The module of a command and the command in it have the
# command's name, but for `list`, which Python needs.
SUMMARIES: Final[Mapping[str, str]] = {
    "demo": "Try hard to charge somebody twice, and watch it not happen.",
    "dashboard": "Serve pages that show the store's keys and let you decide them.",
    "list": "List keys, newest claim first.",
    "show": "Show where one key stands.",
    "resolve": "Decide a key whose outcome is unknown.",
    "release": "Let a key run again that has failed, or whose outcome is unknown.",
    "stats": "Say how a store is doing.",
    "doctor": "Find what silently breaks the guarantee.",
    "guarantee": "Say what a store guarantees and why, and which replicas lower it.",
    "verify": "Check from outside whether an HTTP API is safe to retry.",
    "recover": "Finish operations that were abandoned.",
    "consume": "Consume queues until a signal.",
    "redrive": "Move dead letters, or parked messages, back into their queue.",
    "sweep": "Remove records nothing needs any more.",
    "migrate": "Bring a store's tables up to date, or make a new store.",
    "copy": "Copy every key to another store.",
    "exporter": "Serve the metrics of a store to Prometheus.",
    "policy": "Write the idempotency policy that an app's clients should read.",
    "completion": "Print the script that completes commands and options in your shell.",
    "version": "Say which versions are at work.",
}
_NAMES_IN_PYTHON: Final = {"list": "list_keys"}


class LazyCommand(click.Command):
    """A command that is known by its name and summary until it runs."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._python_name = _NAMES_IN_PYTHON.get(name, name)

    def load(self) -> click.Command:
        """The command itself; imports its module."""
        module = import_module(f"{_PACKAGE}.{self._python_name}")
        command: click.Command = getattr(module, self._python_name)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of the command itself, which then runs or completes."""
        return self.load().make_context(info_name, args, parent, **extra)


@click.group(
    commands={name: LazyCommand(name, summary) for name, summary in SUMMARIES.items()},
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
