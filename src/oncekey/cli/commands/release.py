"""`oncekey release`."""

from __future__ import annotations

import click

from oncekey import KeyStatus
from oncekey.cli.command_input import by_option, json_option, reason_of, why_option, yes_option
from oncekey.cli.commands.resolve import decide_chosen
from oncekey.cli.key_choice import KeyChoice, key_options
from oncekey.cli.output import Output
from oncekey.core.record import State
from oncekey.engine.keys.administration import FREE, Resolution, releasable


@click.command()
@key_options
@by_option
@why_option
@yes_option
@json_option
@click.pass_context
def release(
    context: click.Context,
    choice: KeyChoice,
    by: str | None,
    why: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Let a key run again that has failed, or whose outcome is unknown.

    For a failure that is mended (the card was unblocked, the bug is deployed): the next call with
    this key runs the operation again, and what it failed with stays in its history. For an unknown
    key it is the same as `resolve --free`: be sure that nothing has happened. A key that has
    succeeded is never released. Asks first, and changes nothing (exit code 5) if the key is not
    any more as it was shown.

    Without a terminal, or with --json, give --yes, --by and --why. URL may be left out if
    ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey release sqlite:///payments.db --tag 3f9c21d0a7b4
      oncekey release postgresql://ops@db/shop charge order-1042 --scope acct_1
      oncekey release --tag 3f9c21d0a7b4 --by ana --why "card unblocked, INC-7" --yes --json
    """
    out = Output(as_json=as_json)

    def decide(status: KeyStatus) -> tuple[Resolution, State]:
        return FREE, releasable(status)

    reason = reason_of(by, why, yes=yes, as_json=as_json)
    decide_chosen(context, out, choice, decide, reason)
