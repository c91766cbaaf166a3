"""The naive consumer: look the order up, ship it, note that it was shipped, remove the message.

It is not sabotaged: it knows the orders that it has noted, and ships none of them again. Whoever is
killed between shipping and noting has shipped, and nobody knows.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from oncekey.demo.api.provider_client import ProviderClient
from oncekey.demo.handlers import Handler
from oncekey.demo.naive.naive_database import NaiveDatabase
from oncekey.demo.shipping.sqlite_queue import AsyncOrderQueue

_ACCOUNT = "shipping"
_WAIT_SECONDS = 5.0


async def consume_naively(
    queue: AsyncOrderQueue,
    provider: ProviderClient,
    database: NaiveDatabase,
    *,
    lease_seconds: float,
    on_run: Callable[[Any], None],
) -> None:
    """Consumes for ever. `on_run` is called with each message whose order is shipped."""
    while True:
        for message in await queue.receive(1, _WAIT_SECONDS, lease_seconds):
            order = message.json()
            known = await asyncio.to_thread(database.stored_response, _ACCOUNT, order["order"])
            if known is None:
                on_run(message)
                receipt = await provider.ship(
                    str(uuid.uuid4()), order["order"], order["card"], handler=Handler.NAIVE
                )
                await asyncio.to_thread(
                    database.store_response, _ACCOUNT, order["order"], dict(receipt)
                )
            await queue.remove(message)
