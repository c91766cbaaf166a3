"""What only the asyncio engine has: heartbeat tasks, cancelled bodies, several event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oncekey.core.commands import Claim, Claimed, Command, Look, Renew, Replay, Seen
from oncekey.core.errors import ConfigurationError, LeaseLost
from oncekey.core.events import Event, EventKind
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.batches.duplicates import FOLLOWER_POLL_US, Duplicates, Waiter
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.stores.sqlite import AsyncSQLiteStore
from oncekey.testing.contract.store_case import LEASE, claim, token
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault
from oncekey.testing.sync_facade import yield_until

POLICY = Policy(lease="30s", keep="1h", audit="1h")
LOOPS = 4


def hold_renewals(number: int, commands: Sequence[Command]) -> Fault | None:
    """A script that holds every renewal."""
    return Fault.HOLD_BEFORE if isinstance(commands[0], Renew) else None


def engine_with_faults(script: Any) -> tuple[AsyncOnce, AsyncFaultyStore, FakeClock]:
    clock = FakeClock()
    store = AsyncFaultyStore(AsyncMemoryStore(clock=clock.wall), script)
    return AsyncOnce(store, clock=clock, policy=POLICY), store, clock


def test_a_renewal_in_flight_when_the_body_returns_leaves_no_task_behind() -> None:
    async def main() -> None:
        once, store, clock = engine_with_faults(hold_renewals)
        go = asyncio.Event()

        async def body(attempt: Any) -> str:
            await go.wait()
            return "done"

        running = asyncio.create_task(once.run("op", "k", body))
        await asyncio.to_thread(clock.wait_until_due, LEASE // 3)
        clock.advance(LEASE // 3)
        await asyncio.to_thread(store.wait_held)
        go.set()
        coalescer = once._runner.loop_state().coalescer
        await yield_until(lambda: len(coalescer._queue) == 1)  # the Finish
        store.release()
        assert (await running).value == "done"
        await once.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("swallows", [False, True])
def test_i5_a_lost_lease_cancels_the_body(swallows: bool) -> None:
    """If the body returns a value nevertheless, its Finish is sent and refused."""

    async def main() -> None:
        once, store, clock = engine_with_faults(hold_renewals)
        seen: list[object] = []

        async def body(attempt: Any) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(attempt.lost)
                if swallows:
                    return "swallowed the cancellation"
                raise
            return "never"

        running = asyncio.create_task(once.run("op", "k", body, retry_safe=True))
        await asyncio.to_thread(clock.wait_until_due, LEASE // 3)
        clock.advance(LEASE // 3)
        await asyncio.to_thread(store.wait_held)
        clock.advance(LEASE)
        (first,) = store.calls[0]
        assert isinstance(first, Claim)
        rival = claim(first.id, token(), fingerprint=first.fingerprint, retry_safe=True)
        (reply,) = await store.inner.apply([rival])
        assert isinstance(reply, Claimed)
        store.release()
        with pytest.raises(LeaseLost):
            await running
        assert seen == [True]
        assert store.kinds() == ["Claim", "Renew", *(["Finish"] if swallows else []), "Look"]
        (found,) = await store.inner.apply([Look(first.id)])
        assert isinstance(found, Seen)
        assert found.record is not None
        kept = (found.record.state, found.record.owner, found.record.body)
        assert kept == (State.PENDING, rival.owner, b"")

    asyncio.run(main())


def test_a_recover_function_may_be_async() -> None:
    async def main() -> None:
        once, store, clock = engine_with_faults(None)
        identity = once._jobs.identities.identify("", "op", "k")
        fingerprint = once._jobs.identities.fingerprint(None)
        await store.inner.apply([claim(identity.id, token(), fingerprint=fingerprint)])
        clock.advance(LEASE)

        async def recover(unknown: UnknownKey) -> Recovery:
            await asyncio.sleep(0)
            return Recovery.succeeded(unknown.child_key("pay"))

        async def body(attempt: Any) -> None:
            raise AssertionError("must not run")

        result = await once.run("op", "k", body, recover=recover)
        assert result.value == once._jobs.identities.child_key(identity, "pay")

    asyncio.run(main())


def test_i1_several_event_loops_share_one_engine(tmp_path: Path) -> None:
    once = AsyncOnce(AsyncSQLiteStore(tmp_path / "keys.db"), policy=POLICY)
    barrier, runs, results = threading.Barrier(LOOPS), list[int](), list[Any]()

    async def body(attempt: Any) -> str:
        runs.append(attempt.fence)
        return "once"

    async def one_loop() -> None:
        barrier.wait(90)
        results.extend(
            await asyncio.gather(*(once.run("op", "k", body, wait="20s") for _ in range(8)))
        )

    threads = [threading.Thread(target=lambda: asyncio.run(one_loop())) for _ in range(LOOPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    asyncio.run(once.close())
    assert len(runs) == 1
    assert [r.value for r in results] == ["once"] * (8 * LOOPS)
    assert sum(not r.replayed for r in results) == 1


def test_a_waiter_on_another_loop_is_woken_there() -> None:
    clock = FakeClock()
    once = AsyncOnce(AsyncMemoryStore(clock=clock.wall), clock=clock, policy=POLICY)
    inside, go = threading.Event(), threading.Event()
    results: list[Any] = []

    async def body(attempt: Any) -> str:
        inside.set()
        await asyncio.to_thread(go.wait, 30)
        return "once"

    async def waiter() -> None:
        results.append(await once.run("op", "k", body, wait="20s"))

    first = threading.Thread(target=lambda: asyncio.run(waiter()))
    second = threading.Thread(target=lambda: asyncio.run(waiter()))
    first.start()
    assert inside.wait(90)
    second.start()
    clock.wait_until_due(FOLLOWER_POLL_US)
    go.set()
    first.join(90)
    second.join(90)
    assert sorted(r.replayed for r in results) == [False, True]


def test_a_guard_refuses_async_functions_for_once_and_sync_ones_for_async_once() -> None:
    async def work(key: str) -> None:
        """An async function."""

    def plain(key: str) -> None:
        """A sync function."""

    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        Once(MemoryStore()).guard("op", key=lambda key: key)(work)
    with pytest.raises(ConfigurationError, match="guard it with Once"):
        AsyncOnce(AsyncMemoryStore()).guard("op", key=lambda key: key)(plain)  # type: ignore[arg-type]


def test_close_cancels_a_caller_that_waits_for_a_duplicate() -> None:
    async def main() -> None:
        once, store, _ = engine_with_faults(None)
        go = asyncio.Event()

        async def body(attempt: Any) -> str:
            await go.wait()
            return "done"

        running = asyncio.create_task(once.run("op", "k", body))
        await yield_until(lambda: len(store.calls) == 1)
        waiting = asyncio.create_task(once.run("op", "k", body, wait="20s"))
        await yield_until(lambda: bool(once._runner.loop_state().shared.duplicates._waiting))
        await once.close(drain="0s")
        outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
        assert isinstance(outcomes[1], asyncio.CancelledError)

    asyncio.run(main())


def test_a_finish_is_an_event_though_the_caller_was_cancelled() -> None:
    async def main() -> None:
        once, store, _ = engine_with_faults(None)
        kinds: list[EventKind] = []

        def note(event: Event) -> None:
            kinds.append(event.kind)

        once.subscribe(note)
        go = asyncio.Event()

        async def body(attempt: Any) -> str:
            await go.wait()
            return "done"

        caller = asyncio.create_task(once.run("op", "k", body))
        await yield_until(lambda: kinds == [EventKind.CLAIMED])
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go.set()
        await once.close()
        assert store.kinds() == ["Claim", "Finish"]
        assert kinds == [EventKind.CLAIMED, EventKind.FINISHED]

    asyncio.run(main())


def test_i14_a_waiter_on_a_closed_loop_does_not_keep_the_others_from_waking() -> None:
    """The attempt that ends has had its effect, so its caller must get the result."""
    duplicates, woken = Duplicates(), threading.Event()
    closed = asyncio.new_event_loop()
    closed.close()

    def wake_on_closed_loop() -> None:
        closed.call_soon_threadsafe(woken.clear)

    claim_of_key = Claim(b"id", b"o", b"f", 1, 1, 1, False)
    duplicates.start_sleep(Waiter(claim_of_key, wake_on_closed_loop))
    duplicates.start_sleep(Waiter(claim_of_key, woken.set))
    duplicates.key_ended(claim_of_key, Replay(State.SUCCEEDED, b"", 1, 1, 1))
    assert woken.is_set()
