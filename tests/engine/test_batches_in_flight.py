"""Several batches in flight: up to the store's max_in_flight and never more, in even shares."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.support.coalescer_replies import async_reply_of, reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.batches.async_coalescer import AsyncCoalescer
from oncekey.engine.batches.batch import SHARE_MIN, batch_size
from oncekey.engine.batches.coalescer import Coalescer
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import wait_until_true
from oncekey.testing.sync_facade import yield_until

TIMEOUT_SECONDS = 60.0


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


def number_of(command: Command) -> int:
    return int.from_bytes(command.id, "big")


def replies_to(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, number_of(command)) for command in commands]


Answer = Callable[[Sequence[Command]], list[Reply]]


class Gates:
    """A store whose calls wait, each until the test releases it."""

    def __init__(self, answer: Answer = replies_to) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[threading.Event] = []
        self.answer = answer

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        gate = threading.Event()
        self.batches.append([number_of(command) for command in commands])
        self.gates.append(gate)
        assert gate.wait(TIMEOUT_SECONDS)
        return self.answer(commands)

    async def apply_async(self, commands: Sequence[Command]) -> list[Reply]:
        gate = threading.Event()
        self.batches.append([number_of(command) for command in commands])
        self.gates.append(gate)
        await yield_until(gate.is_set)
        return self.answer(commands)


# --- the size of a batch --------------------------------------------------------------------------


def test_a_batch_takes_its_share_of_all_commands_queued_or_in_flight() -> None:
    assert batch_size(64, 0, 1, 256) == 64
    assert batch_size(64, 0, 2, 256) == 32
    assert batch_size(62, 2, 2, 256) == 32
    assert batch_size(30, 34, 2, 256) == 30
    assert batch_size(65, 0, 2, 256) == 33
    assert batch_size(900, 0, 2, 256) == 256


def test_a_few_commands_stay_in_one_batch() -> None:
    assert batch_size(1, 0, 3, 256) == 1
    assert batch_size(SHARE_MIN, 0, 2, 256) == SHARE_MIN
    assert batch_size(SHARE_MIN, 0, 2, 4) == 4


# --- threads --------------------------------------------------------------------------------------


class Threads:
    """Callers in threads, on a coalescer with several batches in flight."""

    def __init__(self, store: Gates, pool: ThreadPoolExecutor, max_in_flight: int) -> None:
        self.store = store
        self.pool = pool
        self.coalescer = Coalescer(store.apply, max_in_flight=max_in_flight)

    def start(self, *numbers: int) -> list[Future[Reply]]:
        return [self.pool.submit(reply_of, self.coalescer, look(number)) for number in numbers]

    def start_in_lane(self, number: int) -> Future[Reply]:
        count = len(self.store.batches)
        (future,) = self.start(number)
        wait_until_true(lambda: len(self.store.gates) == count + 1)
        return future

    def queue(self, *numbers: int) -> list[Future[Reply]]:
        before = len(self.coalescer._queue)
        futures = self.start(*numbers)
        wait_until_true(lambda: len(self.coalescer._queue) == before + len(numbers))
        return futures


def test_threads_have_up_to_max_in_flight_batches_in_flight() -> None:
    store = Gates()
    with ThreadPoolExecutor(80) as pool:
        threads = Threads(store, pool, max_in_flight=2)
        futures = [threads.start_in_lane(0), threads.start_in_lane(1)]
        futures += threads.queue(*range(2, 64))
        assert store.batches == [[0], [1]], "both batches are in flight, the others queue up"
        store.gates[0].set()
        wait_until_true(lambda: len(store.gates) == 3)
        assert len(store.batches[2]) == 32, "half of those under way, not all that wait"
        store.gates[1].set()
        wait_until_true(lambda: len(store.gates) == 4)
        for gate in store.gates:
            gate.set()
        assert [future.result(TIMEOUT_SECONDS) for future in futures] == replies_to(
            [look(number) for number in range(64)]
        )
    assert threads.coalescer._batches_in_flight == 0
    assert threads.coalescer._commands_in_flight == 0


def test_no_batch_of_threads_counts_as_in_flight_after_the_last_reply() -> None:
    store = Gates()
    with ThreadPoolExecutor(8) as pool:
        threads = Threads(store, pool, max_in_flight=3)
        for _ in range(2):
            futures = [threads.start_in_lane(number) for number in range(3)]
            for gate in store.gates:
                gate.set()
            for future in futures:
                future.result(TIMEOUT_SECONDS)


def failing(*poisoned: int) -> Answer:
    def answer(commands: Sequence[Command]) -> list[Reply]:
        if any(number_of(command) in poisoned for command in commands):
            raise StoreUnavailable("gone")
        return replies_to(commands)

    return answer


def test_a_failed_batch_of_threads_does_not_affect_the_others() -> None:
    store = Gates(failing(0))
    with ThreadPoolExecutor(8) as pool:
        threads = Threads(store, pool, max_in_flight=2)
        bad, good = threads.start_in_lane(0), threads.start_in_lane(1)
        queued = threads.queue(2, 3)
        store.gates[0].set()
        with pytest.raises(StoreUnavailable):
            bad.result(TIMEOUT_SECONDS)
        wait_until_true(lambda: len(store.gates) == 3)
        assert sorted(store.batches[2]) == [2, 3], "the next batch takes those who wait"
        for gate in store.gates:
            gate.set()
        assert good.result(TIMEOUT_SECONDS) == Seen(None, 1)
        assert [future.result(TIMEOUT_SECONDS) for future in queued] == replies_to(
            [look(2), look(3)]
        )


class Stop(BaseException):
    """Raised by a signal handler in the thread of a leader."""


def test_the_batch_of_an_interrupted_leader_is_no_longer_in_flight() -> None:
    def interrupted(commands: Sequence[Command]) -> list[Reply]:
        if number_of(commands[0]) == 0:
            raise Stop
        return replies_to(commands)

    coalescer = Coalescer(interrupted, max_in_flight=2)
    with pytest.raises(Stop):
        reply_of(coalescer, look(0))
    assert coalescer._batches_in_flight == coalescer._commands_in_flight == 0


def test_many_threads_never_exceed_max_in_flight() -> None:
    lock = threading.Lock()
    inside = most = 0

    def apply(commands: Sequence[Command]) -> list[Reply]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.0005)  # long enough for calls to overlap
        with lock:
            inside -= 1
        return replies_to(commands)

    coalescer = Coalescer(apply, max_in_flight=3)

    def work(first: int) -> list[int]:
        numbers = range(first, first + 40)
        return [n for n in numbers if reply_of(coalescer, look(n)) != Seen(None, n)]

    with ThreadPoolExecutor(24) as pool:
        wrong = [n for some in pool.map(work, range(0, 24_000, 1_000)) for n in some]
    assert wrong == []
    assert most == 3
    assert coalescer._batches_in_flight == coalescer._commands_in_flight == 0


# --- tasks ----------------------------------------------------------------------------------------


def _stay() -> None:
    """Go on waiting after a cancellation, as a caller that finishes a key does."""


class Tasks:
    """Callers in tasks, on a coalescer with several batches in flight."""

    def __init__(self, store: Gates, max_in_flight: int) -> None:
        self.coalescer = AsyncCoalescer(store.apply_async, max_in_flight=max_in_flight)

    def start(self, *numbers: int) -> list[asyncio.Task[Reply]]:
        return [
            asyncio.create_task(async_reply_of(self.coalescer, look(number), _stay))
            for number in numbers
        ]


def test_tasks_have_up_to_max_in_flight_batches_in_flight() -> None:
    async def main() -> None:
        store = Gates()
        tasks = Tasks(store, max_in_flight=2)
        started = tasks.start(0)
        await yield_until(lambda: len(store.gates) == 1)
        started += tasks.start(1)
        await yield_until(lambda: len(store.gates) == 2)
        started += tasks.start(*range(2, 64))
        await yield_until(lambda: len(tasks.coalescer._queue) == 62)
        assert store.batches == [[0], [1]]
        store.gates[0].set()
        await yield_until(lambda: len(store.gates) == 3)
        assert store.batches[2] == list(range(2, 34)), "half of those under way"
        store.gates[1].set()
        await yield_until(lambda: len(store.gates) == 4)
        assert store.batches[3] == list(range(34, 64))
        for gate in store.gates:
            gate.set()
        assert await asyncio.gather(*started) == replies_to([look(n) for n in range(64)])
        await yield_until(lambda: not tasks.coalescer._pumps)
        assert tasks.coalescer._commands_in_flight == 0

    asyncio.run(main())


def test_tasks_that_come_together_are_sent_in_equal_batches() -> None:
    async def main() -> None:
        store = Gates()
        tasks = Tasks(store, max_in_flight=2)
        started = tasks.start(*range(64))
        await yield_until(lambda: len(store.gates) == 2)
        assert store.batches == [list(range(32)), list(range(32, 64))]
        for gate in store.gates:
            gate.set()
        await asyncio.gather(*started)

    asyncio.run(main())


def test_tasks_that_come_again_together_are_sent_together() -> None:
    batches: list[int] = []
    pumps: list[int] = []

    async def main() -> None:
        async def apply(commands: Sequence[Command]) -> list[Reply]:
            await asyncio.sleep(0)
            batches.append(len(commands))
            pumps.append(len(coalescer._pumps))
            return replies_to(commands)

        coalescer = AsyncCoalescer(apply, max_in_flight=2)

        async def work(number: int) -> None:
            for _ in range(3):
                await async_reply_of(coalescer, look(number), _stay)

        await asyncio.gather(*(work(number) for number in range(8)))

    asyncio.run(main())
    assert batches == [8, 8, 8], (
        "the next batch waits for those of the last one, for one iteration of the loop"
    )
    assert pumps == [1, 1, 1], "and one task does it all"


def test_a_cancelled_pump_fails_only_its_own_batch() -> None:
    async def main() -> None:
        store = Gates()
        tasks = Tasks(store, max_in_flight=2)
        (bad,) = tasks.start(0)
        await yield_until(lambda: len(store.gates) == 1)
        (good,) = tasks.start(1)
        await yield_until(lambda: len(store.gates) == 2)
        queued = tasks.start(2, 3)
        await yield_until(lambda: len(tasks.coalescer._queue) == 2)
        next(iter(tasks.coalescer._pumps)).cancel()
        with pytest.raises(StoreUnavailable):
            await bad
        store.gates[1].set()
        assert await good == Seen(None, 1)
        await yield_until(lambda: len(store.gates) == 3)
        store.gates[2].set()
        assert await asyncio.gather(*queued) == replies_to([look(2), look(3)])

    asyncio.run(main())


def test_a_failed_batch_of_tasks_does_not_affect_the_others() -> None:
    async def main() -> None:
        store = Gates(failing(0))
        tasks = Tasks(store, max_in_flight=2)
        (bad,) = tasks.start(0)
        await yield_until(lambda: len(store.gates) == 1)
        (good,) = tasks.start(1)
        await yield_until(lambda: len(store.gates) == 2)
        store.gates[0].set()
        with pytest.raises(StoreUnavailable):
            await bad
        store.gates[1].set()
        assert await good == Seen(None, 1)

    asyncio.run(main())


def test_many_tasks_never_exceed_max_in_flight() -> None:
    inside = most = 0

    async def apply(commands: Sequence[Command]) -> list[Reply]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(3):
            await asyncio.sleep(0)
        inside -= 1
        return replies_to(commands)

    async def main() -> None:
        coalescer = AsyncCoalescer(apply, max_in_flight=3)

        async def work(first: int) -> None:
            for number in range(first, first + 40):
                assert await async_reply_of(coalescer, look(number), _stay) == Seen(None, number)
                for _ in range(number % 3):
                    await asyncio.sleep(0)

        await asyncio.gather(*(work(first) for first in range(0, 100_000, 1_000)))
        assert coalescer._commands_in_flight == 0

    asyncio.run(main())
    assert most == 3


# --- the engines ----------------------------------------------------------------------------------


class TwoInFlight(MemoryStore):
    immediate = False
    max_in_flight = 2


class AsyncTwoInFlight(AsyncMemoryStore):
    immediate = False
    max_in_flight = 2


def test_engines_use_the_max_in_flight_of_their_store() -> None:
    assert Once(TwoInFlight())._runner._coalescer._max_in_flight == 2

    async def main() -> int:
        return AsyncOnce(AsyncTwoInFlight())._runner.loop_state().coalescer._max_in_flight

    assert asyncio.run(main()) == 2
    assert MemoryStore.max_in_flight == 1
