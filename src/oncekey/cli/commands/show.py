"""`oncekey show`."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from datetime import UTC, datetime

import click

from oncekey import ConfigurationError, KeyStatus, Once
from oncekey.cli.commands.options import json_option, url_argument
from oncekey.cli.exits import Exit
from oncekey.cli.opening import UsageProblem, has_records, open_store, secret_from
from oncekey.cli.output import Output

VALUE_MAX_CHARS = 2_000

_MEANING = {
    "pending": "in flight: an attempt holds the key",
    "succeeded": "it ran; retries get the stored answer",
    "failed": "it failed for good; retries get the stored error",
    "unknown": "its owner died; it is not run again until somebody decides",
}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_EXPIRED = "expired: the next call runs again"


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
@json_option
@click.pass_context
def show(
    context: click.Context,
    url: str,
    operation: str,
    key: str,
    scope: str,
    secret_env: str | None,
    as_json: bool,
) -> None:
    """Show where one key stands.

    Its state, its attempts, what it answered and until when that holds. Use it when a customer
    asks "was I charged?" or a key is stuck. The key is left as it is. The exit code is 3 if there
    is no such key.

    The key is looked up by its digest, so scope, operation and secret must be those the service
    uses. The stored answer is printed: mind who reads along.

    \b
    Examples:
      oncekey show sqlite:///payments.db charge order-1042
      oncekey show sqlite:///payments.db charge order-1042 --scope acct_1
      oncekey show sqlite:///payments.db charge order-1042 --secret-env ONCEKEY_SECRET --json
    """
    out = Output(as_json=as_json)
    status = _look(url, operation, key, scope, secret_from(secret_env))
    if status is None:
        if as_json:
            out.data({"found": False, "operation": operation, "scope": scope})
        else:
            out.line("no such key: never seen, freed, or swept (or another scope or operation)")
        context.exit(Exit.NOT_FOUND)
    if as_json:
        out.data({"found": True, **dataclasses.asdict(status)})
    else:
        out.facts(_facts(status))


def _look(url: str, operation: str, key: str, scope: str, secret: str | None) -> KeyStatus | None:
    # An empty store is not opened through Once, which would bind it to whatever secret we have.
    if not has_records(url):
        return None
    with closing(open_store(url)) as store:
        try:
            once = Once(store, secret=secret)
        except ConfigurationError as error:
            raise UsageProblem(f"{error} (see --secret-env)") from error
        return once.get(operation, key, scope=scope)


def _facts(status: KeyStatus) -> dict[str, str]:
    meaning = _EXPIRED if status.expired else _MEANING.get(status.state, "")
    facts = {
        "state": f"{status.state} ({meaning})",
        "operation": status.operation,
        "scope": status.scope or "(none)",
        "tag": f"{status.tag} (its name in logs)",
        "attempt": f"{status.attempt}, fence {status.fence}",
        "began": _when(status.created_at),
    }
    if status.finished_at is None:
        facts["lease until"] = _when(status.lease_until)
    else:
        facts["finished"] = _when(status.finished_at)
    facts["kept until"] = _when(status.expires_at)
    if status.error is not None:
        facts["error"] = status.error
    elif status.finished_at is not None:
        facts["answer"] = _short(json.dumps(status.value, default=repr))
    if status.note:
        facts["note"] = status.note
    for step in status.steps:
        facts[f"step {step.name}"] = f"{'done' if step.done else 'begun'} {_when(step.at)}"
    return facts


def _when(at: datetime) -> str:
    """A time, and how far away it is: nobody subtracts time stamps well at night."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    away = abs(seconds)
    size, unit = next((unit for unit in _UNITS if away >= unit[0]), _UNITS[-1])
    count = f"{away / size:.0f} {unit}"
    words = f"in {count}" if seconds > 0 else f"{count} ago"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({words})"


def _short(text: str) -> str:
    if len(text) <= VALUE_MAX_CHARS:
        return text
    return f"{text[:VALUE_MAX_CHARS]}... ({len(text):,} characters; --json has all)"
