"""The coalescers under faults: poisoned commands, unavailable stores, interruptions (S5, I11)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.coalescer_replies import async_reply_of, reply_of

from oncekey.core.commands import Command, Done, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.async_coalescer import AsyncCoalescer
from oncekey.engine.batches.coalescer import Coalescer
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import TIMEOUT_SECONDS, Interrupted, wait_until_true
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore
from oncekey.testing.sync_facade import yield_until

BAD = b"bad".ljust(16)
IDS = [b"%d".ljust(16) % n for n in range(20)]


def poisoned(number: int, commands: Sequence[Command]) -> Fault | Exception | None:
    """Hold the first call, so that all others share one batch; BAD makes any batch fail."""
    if number == 1:
        return Fault.HOLD_BEFORE
    return ValueError("poison") if any(command.id == BAD for command in commands) else None


def test_a_poisoned_command_fails_alone_among_threads() -> None:
    store = FaultyStore(MemoryStore(), poisoned)
    coalescer = Coalescer(store.apply)
    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(reply_of, coalescer, Look(b"first".ljust(16)))
        store.wait_held()
        good = [pool.submit(reply_of, coalescer, Look(id)) for id in IDS]
        bad = pool.submit(reply_of, coalescer, Look(BAD))
        wait_until_true(lambda: len(coalescer._queue) == len(IDS) + 1)
        store.release()
        assert isinstance(first.result(), Seen)
        assert all(isinstance(future.result(), Seen) for future in good)
        with pytest.raises(StoreUnavailable, match="ValueError: poison"):
            bad.result()
    assert [len(call) for call in store.calls] == [1, len(IDS) + 1] + [1] * (len(IDS) + 1)


def test_a_poisoned_command_fails_alone_among_tasks() -> None:
    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(), poisoned)
        coalescer = AsyncCoalescer(store.apply)

        def look(id: bytes) -> asyncio.Task[Reply]:
            return asyncio.create_task(async_reply_of(coalescer, Look(id), lambda: None))

        first = look(b"first".ljust(16))
        await yield_until(lambda: store._held == 1)
        good, bad = [look(id) for id in IDS], look(BAD)
        await yield_until(lambda: len(coalescer._queue) == len(IDS) + 1)
        store.release()
        assert isinstance(await first, Seen)
        assert all(isinstance(reply, Seen) for reply in await asyncio.gather(*good))
        with pytest.raises(StoreUnavailable, match="ValueError: poison"):
            await bad
        assert [len(call) for call in store.calls] == [1, len(IDS) + 1] + [1] * (len(IDS) + 1)

    asyncio.run(main())


def test_an_unavailable_store_fails_the_whole_batch() -> None:
    store = FaultyStore(MemoryStore(), {1: Fault.HOLD_BEFORE, 2: Fault.REFUSE})
    coalescer = Coalescer(store.apply)
    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(reply_of, coalescer, Look(b"first".ljust(16)))
        store.wait_held()
        rest = [pool.submit(reply_of, coalescer, Look(id)) for id in IDS]
        wait_until_true(lambda: len(coalescer._queue) == len(IDS))
        store.release()
        first.result()
        for future in rest:
            with pytest.raises(StoreUnavailable):
                future.result()
    assert len(store.calls) == 2


def test_a_store_that_returns_too_few_replies_is_an_error() -> None:
    def short(commands: Sequence[Command]) -> list[Reply]:
        return [Done()] * (len(commands) - 1)

    with pytest.raises(StoreUnavailable, match="0 replies to 1"):
        reply_of(Coalescer(short), Look(BAD))


@pytest.fixture
def interrupt_main() -> Iterator[Callable[[], None]]:
    """Return a function that raises Interrupted in the main thread, as Ctrl-C does."""
    raised = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def raise_once(number: int, frame: Any) -> None:
        if not raised.is_set():
            raised.set()
            raise Interrupted

    def interrupt() -> None:
        # The signal is repeated, because the thread may miss one just before it begins to wait.
        while not raised.wait(0.005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_once)
    yield interrupt
    signal.signal(signal.SIGUSR1, before)


def call_in_thread(coalescer: Coalescer, command: Command) -> object:
    """Return the reply or the error, or None if none comes."""
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(reply_of(coalescer, command))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    return outcome[0] if outcome else None


def test_i11_an_interrupted_follower_does_not_block_the_others(
    interrupt_main: Callable[[], None],
) -> None:
    """It leaves when its command is applied, so the leader must not wait until it has left."""
    store = FaultyStore(MemoryStore(), {1: Fault.HOLD_BEFORE})
    coalescer = Coalescer(store.apply)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(reply_of, coalescer, Look(IDS[0]))
        store.wait_held()

        def interrupt() -> None:
            wait_until_true(lambda: len(coalescer._queue) == 1)
            interrupt_main()
            store.release()

        pool.submit(interrupt)
        with pytest.raises(Interrupted):
            reply_of(coalescer, Look(IDS[1]))
        assert store.kinds() == ["Look", "Look"]
        assert isinstance(leader.result(TIMEOUT_SECONDS), Seen)
    assert isinstance(call_in_thread(coalescer, Look(IDS[2])), Seen)


class InterruptedLeader:
    """The main thread is interrupted while it leads a batch with another thread's command."""

    def __init__(self, interrupt_main: Callable[[], None]) -> None:
        self.interrupt_main = interrupt_main
        self.coalescer = Coalescer(self.apply)
        self.inner = MemoryStore()
        self.entered = threading.Event()
        self.calls: list[int] = []

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        self.calls.append(len(commands))
        if len(self.calls) == 1:
            wait_until_true(lambda: len(self.coalescer._queue) == 2)
        if len(self.calls) == 2:
            self.entered.set()
            wait_until_true(lambda: False)  # the signal interrupts the wait
        return self.inner.apply(commands)

    def follow(self) -> Reply:
        wait_until_true(lambda: len(self.coalescer._queue) == 1)
        return reply_of(self.coalescer, Look(IDS[2]))

    def interrupt(self) -> None:
        self.entered.wait(TIMEOUT_SECONDS)
        self.interrupt_main()

    def run(self) -> Future[Reply]:
        """Interrupt the leader, and return the follower's reply."""
        with ThreadPoolExecutor(3) as pool:
            pool.submit(reply_of, self.coalescer, Look(IDS[0]))
            wait_until_true(lambda: len(self.calls) == 1)
            follower = pool.submit(self.follow)
            pool.submit(self.interrupt)
            with pytest.raises(Interrupted):
                reply_of(
                    self.coalescer, Look(IDS[1])
                )  # first in the queue: it leads the second batch
            return follower


def test_i9_the_followers_of_an_interrupted_leader_get_an_ambiguous_error(
    interrupt_main: Callable[[], None],
) -> None:
    """The store may have applied their commands or not, so they must repeat them."""
    follower = InterruptedLeader(interrupt_main).run()
    with pytest.raises(StoreUnavailable) as caught:
        follower.result(TIMEOUT_SECONDS)
    assert caught.value.ambiguous


def test_i11_another_thread_leads_after_an_interrupted_leader(
    interrupt_main: Callable[[], None],
) -> None:
    case = InterruptedLeader(interrupt_main)
    case.run()
    assert isinstance(call_in_thread(case.coalescer, Look(IDS[3])), Seen)


def test_i11_an_interrupted_leader_leaves_no_thread_behind(
    interrupt_main: Callable[[], None],
) -> None:
    before = set(threading.enumerate())
    InterruptedLeader(interrupt_main).run()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(60)
    assert not [thread for thread in left if thread.is_alive()]
