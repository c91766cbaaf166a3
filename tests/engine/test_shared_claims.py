"""Many duplicates of one key: how many commands reach the store, from threads and from tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from oncekey.core.attempt_flow import POLL_MAX_US
from oncekey.core.commands import Claim, Command, Finish, Renew
from oncekey.core.errors import InFlight, Mismatch
from oncekey.core.policy import Policy
from oncekey.core.recovery import Recovery
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.batches.duplicates import Duplicates
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import (
    TIMEOUT_SECONDS,
    Body,
    HeldBody,
    Interrupted,
    wait_until_true,
)
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore
from oncekey.testing.sync_facade import LoopThread, SyncOnce

COUNT = 50
LEASE_US = 3_000_000
POLICY = Policy(lease="3s")


class Duplicated:
    """An engine whose store records every command, and another engine on the same records."""

    def __init__(self, kind: str) -> None:
        self.clock = FakeClock()
        memory = MemoryStore(clock=self.clock.wall)
        self.store: Any
        self.once: Any
        self.elsewhere = Once(memory, clock=self.clock, policy=POLICY)
        # Without a replay cache: what is shared must not depend on it.
        options: dict[str, Any] = {"clock": self.clock, "policy": POLICY, "cache": 0}
        if kind == "threads":
            self.store = FaultyStore(memory, immediate=False)
            self.once = Once(self.store, **options)
        else:
            self.store = AsyncFaultyStore(AsyncMemoryStore(memory), immediate=False)
            self._loop = LoopThread()
            self.once = SyncOnce(AsyncOnce(self.store, **options), self._loop)
        self._pool = ThreadPoolExecutor(3 * COUNT)

    def start(
        self, count: int = 1, body: Callable[[Any], Any] | None = None, **options: Any
    ) -> Any:
        run = self.once.run
        made = body or Body("never")
        return [self._pool.submit(run, "op", "k", made, **options) for _ in range(count)]

    def hold(self, once: Any) -> tuple[HeldBody, Future[Any]]:
        """Run the key on this engine, with a body that waits."""
        body = HeldBody("answer")
        running = self._pool.submit(once.run, "op", "k", body, request="a")
        body.wait_inside()
        return body, running

    def duplicates(self) -> Duplicates:
        inner = getattr(self.once, "inner", self.once)
        if isinstance(inner, Once):
            return inner._runner._shared.duplicates
        wait_until_true(lambda: bool(inner._runner._loop_states))  # its first call may not be there
        (state,) = inner._runner._loop_states.values()
        found: Duplicates = state.shared.duplicates
        return found

    def until_asleep(self, count: int) -> None:
        wait_until_true(
            lambda: (
                sum(len(waiters.sleeping) for waiters in self.duplicates()._waiting.values())
                == count
            )
        )

    def until_asking(self, count: int) -> None:
        wait_until_true(
            lambda: (
                sum(len(waiters.for_reply) for waiters in self.duplicates()._waiting.values())
                == count
            )
        )

    def sent(self, kind: type[Command]) -> int:
        return sum(type(command) is kind for call in self.store.calls for command in call)

    def close(self) -> None:
        self.once.close()
        self.elsewhere.close()
        self._pool.shutdown()


@pytest.fixture(params=["threads", "tasks"])
def many(request: pytest.FixtureRequest) -> Iterator[Duplicated]:
    made = Duplicated(request.param)
    yield made
    made.close()


def kinds(futures: Sequence[Future[Any]]) -> set[type]:
    return {type(future.exception(TIMEOUT_SECONDS)) for future in futures}


def test_duplicates_of_an_attempt_in_this_process_send_no_claim(many: Duplicated) -> None:
    body, running = many.hold(many.once)
    assert kinds(many.start(COUNT, request="a")) == {InFlight}
    assert kinds(many.start(COUNT, request="b")) == {Mismatch}, "before in flight (I7)"
    assert many.sent(Claim) == 1
    body.go.set()
    assert running.result(TIMEOUT_SECONDS).value == "answer"


def test_waiting_duplicates_of_an_attempt_in_this_process_get_its_result(many: Duplicated) -> None:
    body, running = many.hold(many.once)
    waiting = many.start(COUNT, wait="60s", request="a")
    many.until_asleep(COUNT)
    body.go.set()
    told = [future.result(TIMEOUT_SECONDS) for future in waiting]
    assert {(one.value, one.replayed, one.fence) for one in told} == {
        ("answer", True, running.result(TIMEOUT_SECONDS).fence)
    }
    assert (many.sent(Claim), many.sent(Finish)) == (1, 1)


def test_waiting_duplicates_do_not_delay_the_owners_heartbeat(many: Duplicated) -> None:
    body, running = many.hold(many.once)
    waiting = many.start(COUNT, wait="60s", request="a")
    for beats in range(6):
        many.until_asleep(COUNT)
        many.clock.advance(LEASE_US // 4)  # at a third it is renewed: now, or a little later
        wait_until_true(lambda: _passes(many) or many.sent(Renew) > beats)  # noqa: B023
    body.go.set()
    assert running.result(TIMEOUT_SECONDS).value == "answer"
    assert [future.result(TIMEOUT_SECONDS).value for future in waiting] == ["answer"] * COUNT
    assert many.sent(Claim) == 1


def _passes(many: Duplicated) -> bool:
    many.clock.advance(LEASE_US // 500)
    return False


def test_duplicates_of_an_attempt_in_another_process_share_claims_and_polls(
    many: Duplicated,
) -> None:
    body, running = many.hold(many.elsewhere)
    many.store.script = {1: Fault.HOLD_BEFORE}
    waiting = many.start(COUNT, wait="60s", request="a")
    many.store.wait_held()
    many.until_asking(COUNT - 1)
    many.store.release()
    many.until_asleep(COUNT)
    assert many.sent(Claim) == 2, "the first one's, and one for all who came meanwhile"
    for poll in range(1, 9):
        many.clock.wait_until_due(POLL_MAX_US)
        many.clock.advance(POLL_MAX_US)
        wait_until_true(lambda: many.sent(Claim) == 2 + poll)  # noqa: B023
        many.until_asleep(COUNT)
    body.go.set()
    running.result(TIMEOUT_SECONDS)
    many.clock.wait_until_due(POLL_MAX_US)
    many.clock.advance(POLL_MAX_US)
    assert {future.result(TIMEOUT_SECONDS).value for future in waiting} == {"answer"}
    assert many.sent(Claim) == 2 + 8 + 1
    assert not many.duplicates()._waiting, "nothing is left of them (I11)"


def test_a_freed_key_is_run_by_one_of_the_waiting_duplicates(many: Duplicated) -> None:
    flaky = HeldBody(error=ValueError("flaky"))
    (running,) = many.start(body=flaky, retry_safe=True)
    flaky.wait_inside()
    second = Body("second")
    waiting = many.start(COUNT, second, wait="60s", retry_safe=True)
    many.until_asleep(COUNT)
    flaky.go.set()
    assert kinds([running]) == {ValueError}
    told = [future.result(TIMEOUT_SECONDS) for future in waiting]
    assert {one.value for one in told} == {"second"}
    assert (second.runs, sum(not one.replayed for one in told)) == (1, 1)
    assert many.sent(Claim) == 2


def test_i11_an_interrupted_claim_leaves_no_duplicate_waiting() -> None:
    many = Duplicated("threads")
    many.store.script = {1: Fault.HOLD_BEFORE}
    apply, calls = many.once._runner._coalescer._apply, []

    def interrupted(commands: Sequence[Command]) -> Any:
        calls.append(commands)
        replies = apply(commands)
        if len(calls) == 1:
            raise Interrupted
        return replies

    many.once._runner._coalescer._apply = interrupted
    body = Body("once")
    callers = many.start(COUNT, body, wait="60s")
    many.store.wait_held()
    many.until_asking(COUNT - 1)
    many.store.release()
    wait_until_true(lambda: _passes(many) or all(future.done() for future in callers))
    told = [future.exception(TIMEOUT_SECONDS) for future in callers]
    assert [type(error) for error in told].count(Interrupted) == 1
    assert [error for error in told if error is not None and type(error) is not Interrupted] == []
    assert body.runs == 1
    many.close()


def test_duplicates_that_wait_for_a_dead_owner_do_not_call_recover_repeatedly(
    many: Duplicated,
) -> None:
    """A "nothing happened" of `recover` is not believed while the owner may still act: until then
    all sleep, also beside one that polls."""
    dead = many.elsewhere._jobs.make("op", "k", "", "a", None, {}).claim
    many.elsewhere._store.apply(
        [Claim(dead.id, dead.owner, dead.fingerprint, LEASE_US, 10**9, 0, False)]
    )
    many.clock.advance(LEASE_US)
    asked: list[object] = []

    def recover(key: object) -> Recovery:
        asked.append(key)
        return Recovery.free()

    waiting = many.start(5, Body("ran"), wait="60s", request="a", recover=recover)
    many.until_asleep(5)
    assert len(asked) <= 5
    many.clock.advance(LEASE_US)
    assert {future.result(TIMEOUT_SECONDS).value for future in waiting} == {"ran"}
