"""`python -m oncekey.demo.shipping.consumer_process`: a consumer of orders that can be killed.

It reads its settings from one line on stdin, writes one line to stdout when it begins, and then
two for each delivery: when it came, and what became of it. When stdin ends, its parent is gone, and
it exits as abruptly as a kill would.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from oncekey.core.duration import microseconds
from oncekey.demo.api.payments_app import POLICY, open_keys
from oncekey.demo.api.provider_client import ProviderClient
from oncekey.demo.data_dir import DataDir
from oncekey.demo.handlers import Handler
from oncekey.demo.naive.naive_consumer import consume_naively
from oncekey.demo.naive.naive_database import NaiveDatabase
from oncekey.demo.request_log import LoggedRequest
from oncekey.demo.scenario_result import ResponseKind
from oncekey.demo.shipping.shipping_consumer import shipping_consumer
from oncekey.demo.shipping.sqlite_queue import AsyncOrderQueue, OrderQueue
from oncekey.demo.worker_process import run_with_settings, write, write_request
from oncekey.queues.broker import Settled
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message

_OTHER_KINDS = {Kind.HIDE: ResponseKind.IN_FLIGHT}


class LoggedQueue(OrderQueue):
    """A queue that writes its deliveries as the API writes its requests."""

    def __init__(self, path: Path, name: str, handler: Handler) -> None:
        super().__init__(path, name)
        self._path_shown = f"{handler.root}/orders"
        self._numbers = count(1)
        self._began: dict[tuple[str, int], LoggedRequest] = {}
        self._ran: set[tuple[str, int]] = set()

    def note_run(self, message: Message) -> None:
        """The handler was called for this delivery."""
        self._ran.add(_delivery(message))

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        messages = super().receive(most, wait, lease)
        for message in messages:
            came = LoggedRequest(
                number=next(self._numbers),
                server=f"consumer {os.getpid()}",
                method="TAKE",
                path=self._path_shown,
                who="Scenarios",
                key=str(message.json()["order"]),
                at=time.time(),
            )
            self._began[_delivery(message)] = came
            write_request(came)
        return messages

    def settle(self, settled: Sequence[Settled]) -> None:
        super().settle(settled)
        for message, disposition in settled:
            came = self._began.pop(_delivery(message))
            if disposition.kind is not Kind.REMOVE:
                got = _OTHER_KINDS.get(disposition.kind, ResponseKind.FAILED)
            else:
                ran = _delivery(message) in self._ran
                got = ResponseKind.RAN if ran else ResponseKind.REPLAYED
            ms = round((time.time() - came.at) * 1000)
            write_request(replace(came, got=got, ms=ms))


def _delivery(message: Message) -> tuple[str, int]:
    return message.delivery_id, message.receive_count


async def consume(settings: dict[str, Any]) -> None:
    data_dir, handler = DataDir(Path(settings["folder"])), Handler(settings["handler"])
    provider = ProviderClient(settings["provider"], data_dir.provider_secret)
    logged = LoggedQueue(data_dir.queue, settings["queue"], handler)
    queue = AsyncOrderQueue(logged)
    write({"ready": True})
    if handler is Handler.GUARDED:
        async with open_keys(settings["store"]) as once:
            consumer = shipping_consumer(once, queue, provider, on_run=logged.note_run)
            await consumer.run()
    else:
        lease = microseconds(POLICY.lease, name="lease") / 1_000_000
        database = NaiveDatabase(data_dir.naive_payments)
        await consume_naively(
            queue, provider, database, lease_seconds=lease, on_run=logged.note_run
        )


if __name__ == "__main__":
    run_with_settings(consume)
