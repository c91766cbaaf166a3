"""`oncekey show`."""

from __future__ import annotations

from typing import Any

import click

from oncekey import KeyStatus
from oncekey.cli.command_input import json_option
from oncekey.cli.key_choice import FoundKeys, KeyChoice, find_chosen, key_options, store_of
from oncekey.cli.key_report import key_rows, past_rows, status_data, status_table
from oncekey.cli.output import ExitCode, Output
from oncekey.cli.store_access import warn_of_move
from oncekey.core.codec import JSON
from oncekey.engine.keys.administration import history_of, run_plan


@click.command()
@key_options
@click.option(
    "--history",
    is_flag=True,
    help="Also show what earlier uses of the key left, while their audit time lasts.",
)
@click.option(
    "--bodies",
    is_flag=True,
    help="Show answers, arguments and values of steps; otherwise their types and sizes.",
)
@json_option
@click.pass_context
def show(
    context: click.Context, choice: KeyChoice, history: bool, bodies: bool, as_json: bool
) -> None:
    """Show where one key stands.

    Its state, its attempts, what it answered and until when that holds; who decided it and why;
    its steps, with what the other side calls them, or with the key that an unfinished one was sent
    with. Use it when a customer asks "was I charged?" or a key is stuck. The key is left as it is.
    The exit code is 3 if there is no such key.

    The key is given by OPERATION and KEY, with --scope and --secret-env as the service has them;
    or by --tag, which needs no more; or by --key alone, which tries every operation and scope of
    the newest 10,000 claims and says so. Bodies are redacted unless you ask for them: mind who
    reads along. On PostgreSQL the role needs SELECT on the schema's tables and no more. URL may be
    left out if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey show sqlite:///payments.db charge order-1042
      oncekey show postgresql://support@db/shop charge order-1042 --scope acct_1 --history
      oncekey show sqlite:///payments.db --tag 3f9c21d0a7b4 --bodies
      oncekey show --key order-1042 --secret-env ONCEKEY_SECRET --json
    """
    out = Output(as_json=as_json)
    with store_of(choice) as store:
        if store is not None:
            warn_of_move(store)
        found = find_chosen(store, choice)
        only = found.keys[0] if len(found.keys) == 1 else None
        past: list[KeyStatus] = []
        if history and found.id is not None and store is not None:
            past = run_plan(store, history_of(found.id, JSON))
    if as_json:
        out.data(_as_data(found, choice, past if history else None, bodies=bodies))
    else:
        _print(found, past, out, bodies=bodies)
    if not found.keys:
        context.exit(ExitCode.NOT_FOUND)
    if only is None:
        context.exit(ExitCode.USAGE)


def _as_data(
    found: FoundKeys, choice: KeyChoice, past: list[KeyStatus] | None, *, bodies: bool
) -> dict[str, Any]:
    if len(found.keys) > 1:
        return {"found": True, "several": [status_data(one, bodies=bodies) for one in found.keys]}
    data: dict[str, Any] = {"found": bool(found.keys)}
    if found.keys:
        data |= status_data(found.keys[0], bodies=bodies)
    else:
        data |= {"operation": choice.operation, "scope": choice.scope or "", "tried": found.tried}
    if past is not None:
        data["history"] = [status_data(status, bodies=bodies) for status in past]
    return data


def _print(found: FoundKeys, past: list[KeyStatus], out: Output, *, bodies: bool) -> None:
    if not found.keys:
        out.line(f"no such key: {found.tried}")
    elif len(found.keys) > 1:
        out.table(*status_table(found.keys))
        out.line("several keys; show one of them by --tag")
    else:
        out.rows(key_rows(found.keys[0], bodies=bodies))
    for status in reversed(past):
        out.line("")
        out.rows(past_rows(status, bodies=bodies))
