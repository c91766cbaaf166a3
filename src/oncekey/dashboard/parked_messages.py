"""Returning the parked messages of the consumers that the dashboard was given to their queues.

The store says what became of a key; only a consumer's broker can move its message. A message whose
key is not decided yet is parked again, so that nothing has to be confirmed here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.dashboard.page_request import PageRequest
from oncekey.dashboard.request_checks import Refused
from oncekey.queues import AsyncConsumer, Consumer

MOST: Final = 1_000  # messages of one click
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
    _in_hand.add(consumer)
    try:
        moved = await _return_all(consumer)
    except OncekeyError as error:
        raise Refused(503, f"Nothing more was moved: {error}") from error
    finally:
        _in_hand.discard(consumer)
    _log.info(
        "%d parked messages of %s were returned by %s",
        moved,
        consumer.name,
        request.by or "the dashboard",
    )
    return request.redirect(f"/?done={'returned' if moved else 'none-parked'}")


async def _return_all(consumer: AnyConsumer) -> int:
    id = secrets.token_hex(8)
    if isinstance(consumer, AsyncConsumer):
        try:
            await consumer.broker.facts()
            return await consumer.broker.redrive(MOST, id, parked=True)
        finally:
            await consumer.broker.close()
    return await asyncio.to_thread(_return_in_thread, consumer, id)


def _return_in_thread(consumer: Consumer, id: str) -> int:
    try:
        consumer.broker.facts()
        return consumer.broker.redrive(MOST, id, parked=True)
    finally:
        consumer.broker.close()
