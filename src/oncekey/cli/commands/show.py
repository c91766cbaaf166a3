"""`oncekey show`."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any, NamedTuple

import click

from oncekey import ConfigurationError, KeyStatus
from oncekey.cli.command_options import json_option, url_argument
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.key_report import key_rows, past_rows
from oncekey.cli.open_store import UsageProblem, has_records, open_store, secret_from
from oncekey.cli.output import Output
from oncekey.core.codec import JSON
from oncekey.core.commands import Look, Seen
from oncekey.core.identity import Identities, Identity
from oncekey.core.store import Store
from oncekey.engine.key_status import status_of


class _Found(NamedTuple):
    """What a store knows of a key: where it stands, and past generations, oldest first."""

    status: KeyStatus | None
    past: list[KeyStatus]


@click.command()
@url_argument
@click.argument("operation")
@click.argument("key")
@click.option("--scope", default="", help="The caller the key belongs to, if the service has any.")
@click.option(
    "--secret-env",
    metavar="NAME",
    help="The environment variable that holds the store's secret, if it has one.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Also show what earlier uses of the key left, while their audit time lasts.",
)
@json_option
@click.pass_context
def show(
    context: click.Context,
    url: str,
    operation: str,
    key: str,
    scope: str,
    secret_env: str | None,
    history: bool,
    as_json: bool,
) -> None:
    """Show where one key stands.

    Its state, its attempts, what it answered and until when that holds; its steps, with what each
    of them got from the other side, or with the key that an unfinished one was sent with. Use it
    when a customer asks "was I charged?" or a key is stuck. The key is left as it is. The exit
    code is 3 if there is no such key.

    The key is looked up by its digest, so scope, operation and secret must be those the service
    uses. Stored answers are printed: mind who reads along. On PostgreSQL the role needs SELECT on
    the schema's tables and no more.

    \b
    Examples:
      oncekey show sqlite:///payments.db charge order-1042
      oncekey show postgresql://support@db/shop charge order-1042 --scope acct_1 --history
      oncekey show sqlite:///payments.db charge order-1042 --secret-env ONCEKEY_SECRET --json
    """
    out = Output(as_json=as_json)
    identities = Identities(secret_from(secret_env))
    identity = identities.identify(scope, operation, key)
    found = _look(url, identities, identity, history)
    if as_json:
        out.data(_as_data(found, identity, history))
    else:
        _print(found, out)
    if found.status is None:
        context.exit(ExitCode.NOT_FOUND)


def _look(url: str, identities: Identities, identity: Identity, history: bool) -> _Found:
    # An empty store may not be bound to its secret yet, and must not be to whatever we have.
    if not has_records(url):
        return _Found(None, [])
    with closing(open_store(url)) as store:
        try:
            store.bind(identities.check_value())
        except ConfigurationError as error:
            raise UsageProblem(f"{error} (see --secret-env)") from error
        (seen,) = store.apply([Look(identity.id)])
        assert isinstance(seen, Seen)
        past = _past(store, identity, seen.now) if history else []
        return _Found(status_of(seen, JSON), past)


def _past(store: Store, identity: Identity, now: int) -> list[KeyStatus]:
    if not hasattr(store, "history"):
        raise UsageProblem("--history: this store keeps no past generations")
    statuses = [status_of(Seen(record, now), JSON) for record in store.history(identity.id)]
    return [status for status in statuses if status is not None]


def _as_data(found: _Found, identity: Identity, history: bool) -> dict[str, Any]:
    if found.status is None:
        data: dict[str, Any] = {
            "found": False,
            "operation": identity.operation,
            "scope": identity.scope,
        }
    else:
        data = {"found": True, **dataclasses.asdict(found.status)}
    if history:
        data["history"] = [dataclasses.asdict(status) for status in found.past]
    return data


def _print(found: _Found, out: Output) -> None:
    if found.status is None:
        out.line("no such key: never seen, freed, or swept (or another scope or operation)")
    else:
        out.rows(key_rows(found.status))
    for status in reversed(found.past):
        out.line("")
        out.rows(past_rows(status))
