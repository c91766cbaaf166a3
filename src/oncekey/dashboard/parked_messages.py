"""Returning the parked messages of the consumers that the dashboard was given to their queues.

The store says what became of a key; only a consumer's broker can move its message. A message whose
key is not decided yet is parked again, so that nothing has to be confirmed here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from starlette.responses import Response

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.dashboard.page_request import PageRequest
from oncekey.dashboard.request_checks import Refused
from oncekey.queues import AsyncConsumer, Consumer
from oncekey.queues.redrive import GoOn

MOST: Final = 1_000  # messages of one click
SILENT_MAX_S: Final = 60.0  # so long a broker may take for its next messages
_log = logging.getLogger("oncekey")

AnyConsumer = Consumer | AsyncConsumer

# Two clicks at once would use one connection, and the first to end would close it.
_in_hand: set[AnyConsumer] = set()


def checked_consumers(given: Sequence[AnyConsumer]) -> tuple[AnyConsumer, ...]:
    """The consumers, if they are some."""
    for one in given:
        if not isinstance(one, (Consumer, AsyncConsumer)):
            raise ConfigurationError(
                f"consumers= has a {type(one).__name__}; give consumers, which need not run"
            )
    return tuple(given)


async def return_parked(request: PageRequest) -> Response:
    """The form of one consumer, by its number on the page."""
    consumers, number = request.consumers, request.request.path_params["number"]
    if not (number.isdecimal() and len(number) < 6 and int(number) < len(consumers)):
        raise Refused(404, "There is no such consumer.")
    consumer = consumers[int(number)]
    if consumer.is_running:
        raise Refused(
            409,
            f"The consumer {consumer.name} runs in this process, and its connection is in use. "
            "Give the dashboard one of its own, or run oncekey redrive --parked.",
        )
    if consumer in _in_hand:
        raise Refused(409, f"The parked messages of {consumer.name} are being returned already.")
    try:
        moved = await _return_all(consumer)
    except OncekeyError as error:
        raise Refused(503, f"Nothing more was moved: {error}") from error
    _log.info(
        "%d parked messages of %s were returned by %s",
        moved,
        consumer.name,
        request.by or "the dashboard",
    )
    return request.redirect(f"/?done={'returned' if moved else 'none-parked'}")


async def _return_all(consumer: AnyConsumer) -> int:
    """How many were moved. Nobody waits for a broker that has not answered for SILENT_MAX_S, nor
    does the end of the server: what is left behind is moved by the next click."""
    id, moved, is_left = secrets.token_hex(8), 0, False

    def go_on(so_far: int) -> bool:
        nonlocal moved
        moved = so_far
        return not is_left

    work: asyncio.Future[int]
    if isinstance(consumer, AsyncConsumer):
        work = asyncio.ensure_future(_return_in_task(consumer, id, go_on))
    else:
        work = asyncio.wrap_future(_return_in_thread(consumer, id, go_on))
    _in_hand.add(consumer)
    work.add_done_callback(partial(_ended, consumer))
    try:
        while True:
            before = moved
            await asyncio.wait((work,), timeout=SILENT_MAX_S)
            if work.done():
                return work.result()
            if moved == before:
                raise Refused(
                    503,
                    f"The broker of {consumer.name} has not answered for {SILENT_MAX_S:g} s. "
                    f"{moved} messages were moved, and what it was asked last may be done. Try "
                    "again when it answers.",
                )
    finally:
        is_left = True
        if isinstance(work, asyncio.Task):
            work.cancel()


def _ended(consumer: AnyConsumer, work: asyncio.Future[int]) -> None:
    _in_hand.discard(consumer)
    if not work.cancelled():
        work.exception()  # so that asyncio does not call it unseen


async def _return_in_task(consumer: AsyncConsumer, id: str, go_on: GoOn) -> int:
    try:
        await consumer.broker.facts()
        return await consumer.broker.redrive(MOST, id, parked=True, go_on=go_on)
    finally:
        await consumer.broker.close()


def _return_in_thread(consumer: Consumer, id: str, go_on: GoOn) -> Future[int]:
    """Move in a thread of its own, which no process waits for at its end."""
    done: Future[int] = Future()

    def run() -> None:
        try:
            try:
                consumer.broker.facts()
                moved = consumer.broker.redrive(MOST, id, parked=True, go_on=go_on)
            finally:
                consumer.broker.close()
            done.set_result(moved)
        except BaseException as error:  # for whoever waits for it
            done.set_exception(error)

    threading.Thread(target=run, name=f"oncekey-return-{consumer.name}", daemon=True).start()
    return done
