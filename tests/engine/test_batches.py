"""A batch is bounded by count and bytes; commands that keep or end a claim go first; a lease counts
from the time its batch was sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncekey.core.commands import Claim, Command, Done, Finish, Look, Release, Renew, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.batches.async_coalescer import AsyncCoalescer
from oncekey.engine.batches.batch import BATCH_BYTES_MAX, BATCH_MAX, CLAIMS_PART, Sent
from oncekey.engine.batches.coalescer import Coalescer
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import TIMEOUT_SECONDS, wait_until_true
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore
from oncekey.testing.sync_facade import LoopThread, SyncOnce, yield_until

KIB = 1024
Todo = tuple[Command, int | None]


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def number_of(command: Command) -> int:
    return int.from_bytes(command.id, "big")


def claim(number: int) -> Claim:
    return Claim(id_of(number), b"o" * 16, b"f", 1, 1, 1, False)


def finish(number: int, size: int = 1) -> Finish:
    return Finish(id_of(number), b"o" * 16, 1, State.SUCCEEDED, b"x" * size)


class Held:
    """A store that records its batches; its first call waits. `fails` returns a batch's error."""

    def __init__(self, fails: Callable[[Sequence[Command]], Exception | None]) -> None:
        self.batches: list[list[Command]] = []
        self.gate = threading.Event()
        self._fails = fails

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        self.batches.append(list(commands))
        if len(self.batches) == 1:
            assert self.gate.wait(TIMEOUT_SECONDS)
        return self._answer(commands)

    async def apply_async(self, commands: Sequence[Command]) -> list[Reply]:
        self.batches.append(list(commands))
        if len(self.batches) == 1:
            await yield_until(self.gate.is_set)
        return self._answer(commands)

    def _answer(self, commands: Sequence[Command]) -> list[Reply]:
        error = self._fails(commands)
        if error is not None:
            raise error
        return [Done() for _ in commands]


def send(
    kind: str,
    todo: Sequence[Todo],
    fails: Callable[[Sequence[Command]], Exception | None] = lambda commands: None,
    **options: Any,
) -> tuple[list[list[Command]], list[Sent]]:
    """The batches of many commands that queued up behind one, and each one's result."""
    store = Held(fails)
    if kind == "threads":
        coalescer = Coalescer(store.apply, **options)
        with ThreadPoolExecutor(len(todo) + 1) as pool:
            pool.submit(coalescer.send, Look(b"first"))
            wait_until_true(lambda: len(store.batches) == 1)
            futures = []
            for count, (command, deadline) in enumerate(todo, 1):
                futures.append(pool.submit(coalescer.send, command, deadline))
                wait_until_true(lambda: len(coalescer._queue) == count)  # noqa: B023
            store.gate.set()
            answers = [future.result(TIMEOUT_SECONDS) for future in futures]
            return store.batches[1:], answers

    async def main() -> list[Sent]:
        coalescer = AsyncCoalescer(store.apply_async, **options)
        tasks = [asyncio.create_task(coalescer.send(Look(b"first"), lambda: None))]
        await yield_until(lambda: len(store.batches) == 1)
        for command, deadline in todo:
            tasks.append(asyncio.create_task(coalescer.send(command, lambda: None, deadline)))
        await yield_until(lambda: len(coalescer._queue) == len(todo))
        store.gate.set()
        return (await asyncio.gather(*tasks))[1:]

    answers = asyncio.run(main())
    return store.batches[1:], answers


both = pytest.mark.parametrize("kind", ["threads", "tasks"])


@both
def test_commands_that_keep_or_end_a_claim_go_before_new_claims(kind: str) -> None:
    claims: list[Todo] = [(claim(number), None) for number in range(20)]
    owners: list[Todo] = [
        (Release(id_of(30), b"o" * 16, None), None),
        (finish(31), 500),
        (finish(32), 300),
        (Renew(id_of(33), b"o" * 16, 1, 1), None),
    ]
    batches, _ = send(kind, claims + owners, most=5)
    assert {number_of(command) for command in batches[0]} == {33, 32, 31, 30, 0}
    batches, _ = send(kind, claims + owners, most=2)
    first = [number_of(command) for batch in batches for command in batch[:2]][:6]
    assert first.index(33) < first.index(32) < first.index(31), "nearest to its deadline first"
    assert [number_of(one) for batch in batches for one in batch if type(one) is Claim] == list(
        range(20)
    ), "claims stay in the order they came"


@both
def test_a_part_of_every_batch_is_reserved_for_claims(kind: str) -> None:
    """Otherwise a process with many running attempts would never begin another one."""
    todo: list[Todo] = [(finish(number), 1) for number in range(40)]
    todo += [(claim(number), None) for number in range(40, 50)]
    batches, _ = send(kind, todo, most=9)
    for batch in batches[:5]:
        assert sum(type(command) is Claim for command in batch) == 9 // CLAIMS_PART


@both
def test_a_batch_is_bounded_by_bytes(kind: str) -> None:
    """256 results of 1,000 KiB that end together, with 20 small ones."""
    sizes = [1_000 * KIB] * 256 + [10] * 20
    todo: list[Todo] = [(finish(number, size), number) for number, size in enumerate(sizes)]
    batches, answers = send(kind, todo)
    totals = [sum(len(one.body) for one in batch if type(one) is Finish) for batch in batches]
    assert max(totals) <= BATCH_BYTES_MAX
    assert len(batches) <= 256 // 4 + 2, "full ones"
    assert [number_of(one) for batch in batches for one in batch] == list(range(276)), (
        "nearest to its deadline first"
    )
    assert all(type(reply) is Done for reply, _ in answers)


@both
def test_a_command_larger_than_the_byte_limit_is_sent_alone(kind: str) -> None:
    todo: list[Todo] = [(finish(number, 3 * KIB), number) for number in range(3)]
    batches, _ = send(kind, todo, most_bytes=2 * KIB)
    assert [len(batch) for batch in batches] == [1, 1, 1]


@both
def test_batches_after_a_timeout_are_smaller(kind: str) -> None:
    """Callers repeat their commands, which go in batches of half the size until they succeed."""
    slow = StoreUnavailable("too slow", timed_out=True)

    def fails(commands: Sequence[Command]) -> Exception | None:
        return slow if len(commands) > 8 else None

    todo: list[Todo] = [(finish(number), number) for number in range(120)]
    batches, answers = send(kind, todo, fails, most=64)
    assert [len(batch) for batch in batches[:4]] == [64, 32, 16, 8]
    kinds = [type(reply) for reply, _ in answers]
    assert kinds.count(StoreUnavailable) == 64 + 32 + 16


@both
def test_batch_limits_grow_again_with_good_batches(kind: str) -> None:
    failed: list[Sequence[Command]] = []

    def fails(commands: Sequence[Command]) -> Exception | None:
        if len(commands) > 1 and not failed:
            failed.append(commands)
            return StoreUnavailable("too slow", timed_out=True)
        return None

    todo: list[Todo] = [(finish(number), number) for number in range(4 * 32)]
    batches, _ = send(kind, todo, fails, most=32)
    assert [len(batch) for batch in batches[:4]] == [32, 16, 18, 20]


# --- a lease counts from when its claim was sent --------------------------------------------------


class Line:
    """An engine whose store holds one call for longer than a lease, while others queue up."""

    def __init__(self, kind: str) -> None:
        self.clock = FakeClock()
        memory = MemoryStore(clock=self.clock.wall)
        self.once: Any
        self.store: Any
        options: dict[str, Any] = {"policy": Policy(lease="1s"), "clock": self.clock}
        script = {1: Fault.HOLD_BEFORE}
        if kind == "threads":
            self.store = FaultyStore(memory, script, immediate=False)
            self.once = Once(self.store, **options)
        else:
            self.store = AsyncFaultyStore(AsyncMemoryStore(memory), script, immediate=False)
            self.once = SyncOnce(AsyncOnce(self.store, **options), LoopThread())

    def queued(self) -> int:
        inner = getattr(self.once, "inner", self.once)
        if isinstance(inner, Once):
            return len(inner._runner._coalescer._queue)
        return sum(len(state.coalescer._queue) for state in inner._runner._loop_states.values())


@both
def test_i5_a_claim_queued_longer_than_its_lease_begins_with_a_full_lease(
    kind: str,
) -> None:
    line = Line(kind)
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(line.once.get, "other", "key")
        line.store.wait_held()
        late = [
            pool.submit(line.once.run, "op", f"k{number}", lambda attempt: attempt.lost)
            for number in range(10)
        ]
        wait_until_true(lambda: line.queued() == 10)
        line.clock.advance(5_000_000)
        line.store.release()
        assert first.result(TIMEOUT_SECONDS) is None
        assert [future.result(TIMEOUT_SECONDS).value for future in late] == [False] * 10
    line.once.close()


def test_batch_limits_are_as_documented() -> None:
    assert (BATCH_MAX, BATCH_BYTES_MAX) == (256, 4 * 1024 * KIB)
