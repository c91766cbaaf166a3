"""`oncekey redrive`."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from oncekey.cli.command_input import confirm, json_option, yes_option
from oncekey.cli.consumer_group import consumer_of
from oncekey.cli.output import ExitCode, Output, error_line
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.queues import AsyncConsumer, Consumer
from oncekey.queues.redrive import REDRIVE_ID_MAX_CHARS, GoOn

# A signal that comes just before a wait begins is handled when the wait is over.
_LONGEST_WAIT_S = 1.0
MOST_DEFAULT = 1_000
MOST_MAX = 1_000_000
_OF_PARKED = (
    "Those whose keys were freed are handled; those whose keys are not decided are parked again"
)
_OF_DEAD_LETTERS = (
    "Each failed key among them is opened once, and its handler RUNS again: be sure that the cause "
    "is mended"
)


@click.command()
@click.argument("name", metavar="MODULE:CONSUMER")
@click.option(
    "--most",
    type=click.IntRange(1, MOST_MAX),
    default=MOST_DEFAULT,
    show_default=True,
    help="Messages to move, the oldest first.",
)
@click.option("--parked", is_flag=True, help="Move parked messages, and no dead letters.")
@click.option("--id", "id", metavar="ID", help="The redrive's own name; a new one by default.")
@yes_option
@json_option
def redrive(name: str, most: int, parked: bool, id: str | None, yes: bool, as_json: bool) -> int:
    """Move dead letters, or parked messages, back into their queue.

    For a cause that is mended. Imports the Consumer or AsyncConsumer named, whose broker moves the
    messages; a running consumer handles them. The key of each is stored as failed, and a plain
    duplicate would be made a dead letter at once. A redriven message opens its failed key once: one
    new generation, with its tries counted anew. What fails again comes back as a dead letter.

    Each message is marked with the redrive's ID, and each ID opens a key once, however often its
    message is delivered. So an interrupted redrive can be repeated with --id and the ID it printed,
    and nothing runs twice. Keys that have succeeded meanwhile are not run: their messages are
    removed. A message that fails again while the redrive runs is not moved by it once more.

    Ctrl-C and SIGTERM end it after the message in hand, and at the latest when the consumer's
    stop_timeout is over, if the broker does not answer: none is lost, and it says how to go on.

    With --parked the messages are moved whose outcome nobody knew. Decide their keys first, with
    `oncekey resolve`: the message of a key that succeeded is then removed, that of a failed one
    becomes a dead letter, and that of a key that was freed is handled. One whose key is not decided
    yet is parked again.

    Asks first. Without a terminal, or with --json, give --yes.

    \b
    Examples:
      oncekey redrive shop.orders:consumer
      oncekey redrive shop.orders:consumer --most 10
      oncekey redrive shop.orders:consumer --parked
      oncekey redrive shop.orders:consumer --id INC-7 --yes --json
    """
    out = Output(as_json=as_json)
    id = _checked(id) if id is not None else _new_id()
    consumer = consumer_of(name)
    what = "parked messages" if parked else "dead letters"
    consequence = _OF_PARKED if parked else _OF_DEAD_LETTERS
    question = f"Move up to {most:,} {what} of {consumer.name} back? {consequence}"
    confirm(question, if_meant="it is meant", yes=yes, as_json=as_json)
    with out.progress(f"moving {what}") as show, stop_on_signal() as stop:
        queue, moved = _move_until_stopped(
            consumer,
            most,
            id,
            parked,
            stop,
            lambda so_far: show(f"moving {what}: {so_far:,} moved"),
        )
    stopped = stop.requested and (moved < most or queue is None)
    if as_json:
        found: dict[str, Any] = {"consumer": consumer.name, "queue": queue, "id": id}
        out.data({**found, "parked": parked, "moved": moved, "most": most, "stopped": stopped})
    else:
        moved_what = what.removesuffix("s") if moved == 1 else what
        out.line(f"{moved:,} {moved_what} moved back into {queue or 'its queue'}, as redrive {id}")
    if stopped:
        error_line(f"interrupted; go on with --id {id}")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _move_until_stopped(
    consumer: Consumer | AsyncConsumer,
    most: int,
    id: str,
    parked: bool,
    stop: StopRequest,
    on_moved: Callable[[int], None],
) -> tuple[str | None, int]:
    """Move in a thread, and wait for its end; after a signal `stop_timeout` at most. What a
    broker's client calls may never be answered, and nothing ends a call from outside. A thread that
    is left behind ends with the process, as by a kill: no message is lost, and the redrive's id
    makes it harmless to move one twice. Gives the queue's name, or None if the thread was left
    behind, and how many were moved."""
    done: Future[tuple[str, int]] = Future()
    moved, seconds = 0, consumer.settings.stop_timeout_s

    def go_on(so_far: int) -> bool:
        nonlocal moved
        moved = so_far
        on_moved(moved)
        return not stop.requested

    def run() -> None:
        try:
            done.set_result(_move(consumer, most, id, parked, go_on))
        except BaseException as error:  # for whoever waits for it
            done.set_exception(error)
        with suppress(OSError):  # nobody waits any more
            stop.wake()

    threading.Thread(target=run, name="oncekey-redrive", daemon=True).start()
    while not (done.done() or stop.requested):
        stop.wait(_LONGEST_WAIT_S)
    if wait((done,), timeout=seconds).done:
        return done.result()
    error_line(f"the broker has not answered for {seconds:g} s; what it was asked may be done")
    return None, moved


def _move(
    consumer: Consumer | AsyncConsumer, most: int, id: str, parked: bool, go_on: GoOn
) -> tuple[str, int]:
    """Moves in one call, so that what comes back meanwhile is not moved twice; gives the queue's
    name and how many were moved."""
    if isinstance(consumer, AsyncConsumer):
        return asyncio.run(_move_async(consumer, most, id, parked, go_on))
    broker = consumer.broker
    try:
        queue = broker.facts().queue
        return queue, broker.redrive(most, id, parked=parked, go_on=go_on)
    finally:
        broker.close()


async def _move_async(
    consumer: AsyncConsumer, most: int, id: str, parked: bool, go_on: GoOn
) -> tuple[str, int]:
    broker = consumer.broker
    try:
        queue = (await broker.facts()).queue
        return queue, await broker.redrive(most, id, parked=parked, go_on=go_on)
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
