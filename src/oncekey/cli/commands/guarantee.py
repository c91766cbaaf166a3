"""`oncekey guarantee`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from oncekey.cli import command_input
from oncekey.cli.command_input import (
    Reason,
    by_option,
    json_option,
    reason_of,
    url_argument,
    why_option,
    yes_option,
)
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line, utc
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.store_access import has_records, inspect, store_function
from oncekey.engine.store_urls import moving_urls, store_module
from oncekey.stores.replica_sightings import NOTHING, Remembered, Sighting


@click.command()
@url_argument
@click.option("--forget", metavar="NAME", help="This replica is gone for good: it counts no more.")
@by_option
@why_option
@yes_option
@json_option
@click.pass_context
def guarantee(
    context: click.Context,
    url: str,
    forget: str | None,
    by: str | None,
    why: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Say what a store guarantees and why, and which replicas lower it.

    An asynchronous replica that is promoted lacks acknowledged outcomes, and their operations run
    a second time. It is usually cut off before it is promoted, so one that was seen counts until
    somebody says that it is gone: --forget does, and writes down who said it, when and why. If it
    is seen again, it counts again. For replicas that are never promoted put failover=never into
    the URL instead.

    Without a terminal, or with --json, --forget needs --yes, --by and --why. URL may be left out
    if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey guarantee postgresql://ops@db/shop
      oncekey guarantee postgresql://ops@db/shop --forget db2 --by ana --why "host given back"
      oncekey guarantee redis://cache:6379 --forget 10.0.0.7:6379
    """
    out = Output(as_json=as_json)
    pair = moving_urls(url)
    if pair is not None:
        raise UsageProblem(
            "keys move between two stores, and each has its own guarantee; the weaker one holds. "
            f"Name one of them: {redact_url(pair[0])} or {redact_url(pair[1])}"
        )
    if forget is None:
        _report(out, url, None)
        return
    store_function(url, "forget_replica")  # refuses stores without replicas before it asks
    reason = reason_of(by, why, yes=yes, as_json=as_json)
    if reason.asks and not _confirmed(out, url, forget):
        error_line("nothing was changed")
        context.exit(ExitCode.FAILED)
    _forget(url, forget, reason)
    _report(out, url, forget)


def _confirmed(out: Output, url: str, name: str) -> bool:
    found = [one for one in _remembered(url).sightings if one.name == name]
    for sighting in found:
        out.rows(_row(sighting))
        out.line("")
    out.line(
        "From then on it does not lower the guarantee. If it is promoted all the same, operations "
        "that it lacks RUN a second time: be sure that it is gone, and its replication slot too."
    )
    return command_input.ask(f"Forget {name}?")


def _forget(url: str, name: str, reason: Reason) -> None:
    forget: Any = store_function(url, "forget_replica")
    forget(url, name, by=reason.by, why=reason.why)


def _remembered(url: str) -> Remembered:
    """What the store has written down; nothing, if it is one that has no replicas."""
    has_records(url)  # refuses what is no store, or is of an older release
    read: Any = getattr(store_module(url), "replicas", None)
    found: Remembered = NOTHING if read is None else read(url)
    return found


def _report(out: Output, url: str, forgot: str | None) -> None:
    remembered = _remembered(url)
    found = inspect(url).guarantee
    if out.as_json:
        out.data(
            {
                "store": redact_url(url),
                "guarantee": found.level.label,
                "reason": found.reason,
                "clock": found.clock.value,
                "replicas": [_data(sighting) for sighting in remembered.sightings],
                "forgotten": [
                    {"name": one.name, "notes": one.note.splitlines()}
                    for one in remembered.forgotten
                ],
                **({} if forgot is None else {"forgot": forgot}),
            }
        )
        return
    if forgot is not None:
        out.line(f"{forgot} forgotten")
    out.rows(
        {
            "store": redact_url(url),
            "guarantee": f"{found.level.label}: {found.reason}",
            "clock": found.clock.value,
        }
    )
    for sighting in remembered.sightings:
        out.line("")
        out.rows(_row(sighting))
    for one in remembered.forgotten:
        out.line("")
        out.rows({"forgotten": one.name, "notes": one.note})


def _row(sighting: Sighting) -> dict[str, str]:
    return {
        "replica": str(sighting.replica),
        "first seen": utc(_time(sighting.first_seen)),
        "last seen": f"{utc(_time(sighting.last_seen))}, or up to an hour later",
    }


def _data(sighting: Sighting) -> dict[str, Any]:
    return {
        **sighting.replica._asdict(),
        "slots": sighting.replica.slots.split(),
        "first_seen": _time(sighting.first_seen),
        "last_seen": _time(sighting.last_seen),
    }


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)
