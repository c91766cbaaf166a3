"""`oncekey redrive`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from oncekey.cli import confirmation
from oncekey.cli.command_options import json_option
from oncekey.cli.consume_loop import members_of
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.import_object import import_object
from oncekey.cli.open_store import UsageProblem
from oncekey.cli.operator_decision import yes_option
from oncekey.cli.output import Output, error_line
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.queues import AsyncConsumer, Consumer
from oncekey.queues.redrive import REDRIVE_ID_MAX_CHARS

MOST_DEFAULT = 1_000
MOST_MAX = 1_000_000
BATCH = 100  # dead letters moved at a time; a signal ends it between two batches

OnMoved = Callable[[int], None]


@click.command()
@click.argument("name", metavar="MODULE:CONSUMER")
@click.option(
    "--most",
    type=click.IntRange(1, MOST_MAX),
    default=MOST_DEFAULT,
    show_default=True,
    help="Dead letters to move, the oldest first.",
)
@click.option("--id", "id", metavar="ID", help="The redrive's own name; a new one by default.")
@yes_option
@json_option
def redrive(name: str, most: int, id: str | None, yes: bool, as_json: bool) -> int:
    """Move dead letters back into their queue, to be handled again.

    For a cause that is mended. Imports the Consumer or AsyncConsumer named, whose broker moves the
    messages; a running consumer handles them. The key of each is stored as failed, and a plain
    duplicate would be made a dead letter at once. A redriven message opens its failed key once: one
    new generation, with its tries counted anew. What fails again comes back as a dead letter.

    Each message is marked with the redrive's ID, and each ID opens a key once, however often its
    message is delivered. So an interrupted redrive can be repeated with --id and the ID it printed,
    and nothing runs twice. Keys that have succeeded meanwhile are not run: their messages are
    removed.

    Asks first. Without a terminal, or with --json, give --yes.

    \b
    Examples:
      oncekey redrive shop.orders:consumer
      oncekey redrive shop.orders:consumer --most 10
      oncekey redrive shop.orders:consumer --id INC-7 --yes --json
    """
    out = Output(as_json=as_json)
    id = _checked(id) if id is not None else _new_id()
    consumer = _consumer_of(name)
    _confirm(consumer, most, yes=yes, as_json=as_json)
    with out.progress("moving dead letters") as show, stop_on_signal() as stop:

        def on_moved(moved: int) -> None:
            show(f"moving dead letters: {moved:,} moved")

        queue, moved = _move(consumer, most, id, stop, on_moved)
    stopped = stop.requested and moved < most
    if as_json:
        found: dict[str, Any] = {"consumer": consumer.name, "queue": queue, "id": id}
        out.data({**found, "moved": moved, "most": most, "stopped": stopped})
    else:
        letters = "dead letter" if moved == 1 else "dead letters"
        out.line(f"{moved:,} {letters} moved back into {queue}, as redrive {id}")
    if stopped:
        error_line(f"interrupted; go on with --id {id}")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _consumer_of(name: str) -> Consumer | AsyncConsumer:
    members = members_of(import_object(name), name)
    if len(members) > 1:
        raise UsageProblem(f"{name} is a list of {len(members)}; name one consumer")
    target = members[0].target
    if not isinstance(target, (Consumer, AsyncConsumer)):
        raise UsageProblem(
            f"{name} is of type {type(target).__name__}, which has no dead letters; name a consumer"
        )
    return target


def _confirm(consumer: Consumer | AsyncConsumer, most: int, *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or not confirmation.can_ask():
        raise click.UsageError("nobody can be asked here: give --yes if it is meant")
    question = (
        f"Move up to {most:,} dead letters of {consumer.name} back? Each failed key among them is "
        "opened once, and its handler RUNS again: be sure that the cause is mended"
    )
    if not confirmation.ask(question):
        raise click.Abort


def _move(
    consumer: Consumer | AsyncConsumer, most: int, id: str, stop: StopRequest, on_moved: OnMoved
) -> tuple[str, int]:
    """Moves batch after batch; gives the queue's name and how many were moved."""
    if isinstance(consumer, AsyncConsumer):
        return asyncio.run(_move_async(consumer, most, id, stop, on_moved))
    broker = consumer.broker
    try:
        queue, moved = broker.facts().queue, 0
        while moved < most and not stop.requested:
            count = broker.redrive(min(BATCH, most - moved), id)
            moved += count
            on_moved(moved)
            if not count:
                break
        return queue, moved
    finally:
        broker.close()


async def _move_async(
    consumer: AsyncConsumer, most: int, id: str, stop: StopRequest, on_moved: OnMoved
) -> tuple[str, int]:
    broker = consumer.broker
    try:
        queue, moved = (await broker.facts()).queue, 0
        while moved < most and not stop.requested:
            count = await broker.redrive(min(BATCH, most - moved), id)
            moved += count
            on_moved(moved)
            if not count:
                break
        return queue, moved
    finally:
        await broker.close()


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _checked(id: str) -> str:
    """An ID that a header can carry unchanged."""
    if not 1 <= len(id) <= REDRIVE_ID_MAX_CHARS or not (id.isascii() and id.isprintable()):
        raise click.UsageError(
            f"--id must be 1 to {REDRIVE_ID_MAX_CHARS} printable ASCII characters"
        )
    if id != id.strip():
        raise click.UsageError("--id must not begin or end with a space")
    return id
