"""A consumer on a real broker whose client library fails on demand: see client_seams.py.

It is started again by a test that lets it end. Its store is one file, so what was handled before
stays handled; what its handlers did is counted here, by order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.queues.client_errors import is_named
from tests.queues.client_seams import Seam
from tests.queues.fault_cases import FaultCase
from tests.queues.running_consumer import stop_consumer
from tests.support.log_records import Written, written_log
from tests.support.servers import processes

from oncekey import AsyncOnce, Once, Terminal
from oncekey.core.errors import OncekeyError
from oncekey.queues import consumer_base
from oncekey.queues.aio import consumer as tasks
from oncekey.queues.blocking import consumer as threads
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import describe
from oncekey.queues.queue_message import Message

PATIENCE_S = 60.0
START = "start"  # the phase until the queue's facts are known
OPTIONS: dict[str, Any] = {
    "name": "shipping",
    "key": "json:$.order",
    "retry_safe": True,
    # One at a time: each message is settled by a call of its own, and no handler runs beside a
    # delivery of its own message that comes again.
    "concurrency": 1,
    "batch": 1,
    "lease": "1s",
    "backoff": "1ms",
    "max_tries": 20,
}


class FaultedConsumer:
    """`effects` counts by order how often a handler came to its end."""

    def __init__(self, case: FaultCase, seam: Seam, store: str, log: Written) -> None:
        self.case = case
        self.seam = seam
        self.log = log
        self.effects: Counter[int] = Counter()
        self.sent: set[int] = set()
        self.release = threading.Event()
        self.consumer: Any = None
        self.error: BaseException | None = None
        self._queue = processes.fresh_name("orders")
        self._orders = itertools.count(1)
        self._begun: Counter[int] = Counter()
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # --- its life ---------------------------------------------------------------------------------

    def start(self, phase: str = "", *, until_begun: bool = True) -> None:
        """Start it; the calls before the queue's facts are known are of the phase `start`."""
        self.error = self.consumer = None
        self.seam.phase = START
        main = self._in_tasks if self.case.is_async else self._in_threads
        self._thread = threading.Thread(target=main, daemon=True)
        self._thread.start()
        if until_begun:
            self.wait(lambda: self.has_begun or not self.is_alive, "the consumer has begun")
        self.seam.phase = phase

    @property
    def has_begun(self) -> bool:
        return self.consumer is not None and self.consumer._plan is not None

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_ending(self) -> bool:
        """True if it has ended, or waits for a handler before it does."""
        return not self.is_alive or getattr(self.consumer, "_error", None) is not None

    def stop(self) -> None:
        stop_consumer(self.consumer, self._loop)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the consumer did not end"

    def _in_threads(self) -> None:
        with Once(self._store) as once:
            self.consumer = self.case.queues.consumer(once, self._queue, self._handle, **OPTIONS)
            try:
                self.consumer.run()
            except BaseException as error:
                self.error = error

    def _in_tasks(self) -> None:
        async def handle(message: Message) -> None:
            await asyncio.to_thread(self._handle, message)

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            async with AsyncOnce(self._store) as once:
                made = self.case.queues.async_consumer(once, self._queue, handle, **OPTIONS)
                self.consumer = made
                try:
                    await made.run()
                except BaseException as error:
                    self.error = error

        asyncio.run(main())

    # --- messages ---------------------------------------------------------------------------------

    def send(self, kind: str = "ok", count: int = 1) -> None:
        """Send orders whose handler returns, or raises for good, raises once, or waits for
        `release`."""
        orders = [next(self._orders) for _ in range(count)]
        if kind == "held":
            self.release.clear()
        bodies = [json.dumps({"order": order, "kind": kind}) for order in orders]
        self.case.queues.send(self._queue, bodies)
        self.sent.update(orders)

    def _handle(self, message: Message) -> None:
        body = message.json()
        order, kind = body["order"], body["kind"]
        self._begun[order] += 1
        if kind == "held":
            assert self.release.wait(PATIENCE_S)
        if kind == "retried" and self._begun[order] == 1:
            raise ValueError("not yet")
        self.effects[order] += 1
        if kind == "dead":
            raise Terminal("never")

    def wait_until_all_done(self) -> None:
        """Wait until every order was handled, and check that none was handled twice."""
        self.wait(lambda: self.effects.keys() == self.sent or not self.is_alive, "all are handled")
        self.check_alive()
        assert self.effects == dict.fromkeys(self.sent, 1)

    # --- judgement --------------------------------------------------------------------------------

    def check_alive(self) -> None:
        assert self.is_alive, f"the consumer ended with {self.error!r}"

    def check_named(self, error: BaseException) -> None:
        """Check that a log line says what happened."""
        self.wait(
            lambda: is_named(error, "\n".join(self.log.lines)),
            f"a line names a {type(error).__name__}",
        )

    def check_refusal(self) -> None:
        """Check that it ended because the broker refused something, and said so."""
        self.check_end_is_told()
        assert isinstance(self.error, OncekeyError), repr(self.error)
        assert not isinstance(self.error, BrokerUnavailable)

    def check_end_is_told(self) -> None:
        """Check that `run` raised, and that the log has the reason."""
        self.join()
        assert self.error is not None
        assert f"consumer shipping ends: {describe(self.error)}" in self.log.lines

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            processes.wait_until(is_so, what, PATIENCE_S)
        except processes.ServerFailed as error:
            error.add_note("\n".join(self.log.lines[-10:]))
            raise


@contextmanager
def faulted(case: FaultCase, patch: pytest.MonkeyPatch, folder: Path) -> Iterator[FaultedConsumer]:
    """A consumer that runs until the end of the block, and whose pauses are short."""
    for module in (threads, tasks):
        patch.setattr(module, "PAUSE_FIRST_S", 0.001)
        patch.setattr(module, "RECEIVE_WAIT_S", 0.05)
        patch.setattr(module, "EXTENSIONS_PER_LEASE", 100)
    patch.setattr(consumer_base, "PAUSE_MAX_S", 0.001)
    seam = Seam(patch)
    case.watch(seam)
    with written_log("oncekey", logging.INFO) as log:
        made = FaultedConsumer(case, seam, f"sqlite:///{folder / 'keys.db'}", log)
        made.send()
        try:
            yield made
        finally:
            made.release.set()
            if made.is_alive and made.consumer is not None:
                made.stop()
                made.join()
