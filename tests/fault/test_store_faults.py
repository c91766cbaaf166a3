"""A store that loses replies, refuses calls or applies them late, at every call (I1, I9, I10).

Each test runs on every store, sync and async, with a clock that moves only when the test moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oncekey.core.attempt_flow import CLAIM_TRIES
from oncekey.core.commands import Claim, Command, Finish, Look, Release, Renew, SaveStep
from oncekey.core.errors import (
    InFlight,
    LeaseLost,
    NotStarted,
    OutcomeUnknown,
    StoreUnavailable,
)
from oncekey.core.events import EventKind
from oncekey.core.record import State
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US
from oncekey.core.store import AsyncStore, Store
from oncekey.testing.contract.engine_case import Body, EngineCase, EngineCaseBase, wait_until_true
from oncekey.testing.contract.engine_steps import Checkout
from oncekey.testing.contract.store_case import LEASE, HeldClaim
from oncekey.testing.faulty_store import Fault

Opener = Callable[[Callable[[], int]], Store | AsyncStore]

# The commands of an attempt with two steps; the first test compares it with a real run.
POINTS = ["Claim", "SaveStep", "SaveStep", "SaveStep", "SaveStep", "Finish"]


def only(kind: type[Command], fault: Fault) -> Callable[[int, Sequence[Command]], Fault | None]:
    """Return a script with this fault at every call that begins with such a command."""
    return lambda number, commands: fault if isinstance(commands[0], kind) else None


def pass_retries(engines: EngineCase, us: int, times: int = 1) -> None:
    """Advance the clock each time the engine sleeps before a retry."""
    for _ in range(times):
        engines.clock.wait_until_due(us)
        engines.clock.advance(us)


class TestStoreFaults(EngineCaseBase):
    opener: Opener

    @pytest.fixture(autouse=True)
    def _of_this_kind(self, opener: Opener) -> None:
        self.opener = opener

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)

    def test_an_attempt_with_two_steps_sends_these_commands(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        engines.once(faulty).run("op", "k", Checkout())
        assert faulty.kinds() == POINTS

    @pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.VANISH])
    @pytest.mark.parametrize("point", range(1, len(POINTS) + 1))
    def test_i9_a_lost_reply_to_any_command_is_repeated_and_runs_nothing_twice(
        self, engines: EngineCase, point: int, fault: Fault
    ) -> None:
        faulty = engines.faulty({point: fault})
        once, checkout = engines.once(faulty), Checkout()
        kinds = engines.events_of(once)
        running = engines.start(once.run, "op", "k", checkout)
        pass_retries(engines, RETRY_FIRST_US)
        result = running.result()
        assert (result.value, result.replayed) == (["reserve ok", "pay ok"], False)
        assert [name for name, _ in checkout.sent] == ["reserve", "pay"]
        repeated = POINTS[:point] + POINTS[point - 1 :]
        assert faulty.kinds() == repeated
        assert engines.once().run("op", "k", checkout).value == result.value
        assert kinds == [EventKind.CLAIMED, EventKind.FINISHED]

    @pytest.mark.parametrize("point", range(2, len(POINTS) + 1))
    def test_a_refused_command_is_repeated_while_the_lease_holds(
        self, engines: EngineCase, point: int
    ) -> None:
        faulty = engines.faulty({point: Fault.REFUSE, point + 1: Fault.REFUSE})
        once, checkout = engines.once(faulty), Checkout()
        running = engines.start(once.run, "op", "k", checkout)
        pass_retries(engines, RETRY_FIRST_US * 2, times=2)
        assert running.result().value == ["reserve ok", "pay ok"]
        assert [name for name, _ in checkout.sent] == ["reserve", "pay"]

    def test_a_store_that_is_down_runs_nothing(self, engines: EngineCase) -> None:
        faulty, body = engines.faulty(), Body("ran")
        once = engines.once(faulty)
        faulty.down = True
        with pytest.raises(StoreUnavailable) as caught:
            once.run("op", "k", body)
        assert (caught.value.ambiguous, caught.value.status) == (False, 503)
        assert body.runs == 0
        faulty.down = False
        assert once.run("op", "k", body).value == "ran"

    def test_i9_a_claim_without_a_reply_is_released(self, engines: EngineCase) -> None:
        """All claims are applied but no reply comes: the body must not run, and the key is free."""
        faulty, body = engines.faulty(only(Claim, Fault.LOSE_REPLY)), Body()
        once = engines.once(faulty)
        kinds = engines.events_of(once)
        running = engines.start(once.run, "op", "k", body)
        for tries in range(1, CLAIM_TRIES):
            pass_retries(engines, RETRY_FIRST_US * tries)
        with pytest.raises(StoreUnavailable):
            running.result()
        assert faulty.kinds() == ["Claim"] * CLAIM_TRIES + ["Release"]
        assert (body.runs, engines.record_of("k").state) == (0, State.ABSENT)
        assert kinds == [EventKind.UNAVAILABLE]
        assert engines.once().run("op", "k", body).attempt == 2

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_i1_a_result_that_cannot_be_stored_is_reported_to_the_caller(
        self, engines: EngineCase, retry_safe: bool, lost: bool
    ) -> None:
        fault = Fault.LOSE_REPLY if lost else Fault.REFUSE
        faulty, body = engines.faulty(only(Finish, fault)), Body({"paid": (1, 2)})
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", body, retry_safe=retry_safe)
        pass_retries(engines, RETRY_FIRST_US)
        engines.clock.wait_until_due(RETRY_MAX_US)
        engines.clock.advance(LEASE)
        with pytest.raises(StoreUnavailable, match="operation ran"):
            running.result()
        if lost:
            assert engines.once().run("op", "k", body).replayed
        elif retry_safe:
            assert engines.once().run("op", "k", body, retry_safe=True).attempt == 2
        else:
            with pytest.raises(OutcomeUnknown):
                engines.once().run("op", "k", body)
        assert body.runs == 1 + (retry_safe and not lost)

    def test_a_failed_body_raises_its_own_error_though_the_store_is_unavailable(
        self, engines: EngineCase
    ) -> None:
        faulty = engines.faulty(only(Finish, Fault.REFUSE))
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", Body(error=ValueError("declined")))
        engines.clock.wait_until_due(RETRY_FIRST_US)
        engines.clock.advance(LEASE)
        with pytest.raises(ValueError, match="declined"):
            running.result()

    def test_i5_a_lease_that_is_not_renewed_before_its_deadline_is_lost(
        self, engines: EngineCase
    ) -> None:
        """A retry-safe operation may be taken over by then, as it is here: the loser looks at its
        key only when the rival has it."""

        def script(number: int, commands: Sequence[Command]) -> Fault | None:
            if isinstance(commands[0], Look):
                return Fault.HOLD_BEFORE
            return Fault.REFUSE if isinstance(commands[0], Renew) else None

        faulty = engines.faulty(script)
        once = engines.once(faulty)
        kinds = engines.events_of(once)
        rivals: list[HeldClaim] = []

        def body(attempt: Any) -> str:
            engines.next_beat()
            faulty.wait_calls(2)
            engines.clock.wait_until_due(LEASE // 12)
            engines.clock.advance(LEASE)
            wait_until_true(lambda: attempt._lost)  # its heartbeat has given up
            rivals.append(engines.hold("k", retry_safe=True))
            faulty.script = {}
            faulty.release()
            return "too late"

        with pytest.raises(LeaseLost):
            once.run("op", "k", body, retry_safe=True)
        wait_until_true(
            lambda: bool(rivals)
        )  # the task is cancelled, but the thread of its body is not
        assert kinds[:2] == [EventKind.CLAIMED, EventKind.LOST]
        record = engines.record_of("k")
        assert (record.state, record.fence, record.body) == (State.PENDING, rivals[0].fence, b"")

    def test_i14_an_owner_that_cannot_be_replaced_continues_past_its_deadline(
        self, engines: EngineCase
    ) -> None:
        """At most once: the heartbeat continues past the deadline, and the outcome is stored."""
        faulty, rival = engines.faulty(only(Renew, Fault.REFUSE)), Body("rival")
        once = engines.once(faulty)
        kinds = engines.events_of(once)

        def body(attempt: Any) -> str:
            engines.next_beat()
            faulty.wait_calls(2)
            engines.clock.wait_until_due(LEASE // 12)
            engines.clock.advance(LEASE)
            faulty.wait_calls(3)
            with pytest.raises(OutcomeUnknown):
                engines.once().run("op", "k", rival)
            engines.clock.wait_until_due(LEASE // 12)
            engines.clock.advance(LEASE // 12)
            faulty.wait_calls(4)
            assert attempt.lost  # the lease has ended by its clock ...
            assert not attempt._lost  # ... but nobody has taken over
            return "late"

        assert once.run("op", "k", body).value == "late"
        assert faulty.kinds()[:4] == ["Claim", "Renew", "Renew", "Renew"]
        assert kinds == [EventKind.CLAIMED, EventKind.FINISHED]
        again = engines.once().run("op", "k", rival)
        assert (again.value, again.replayed, rival.runs) == ("late", True, 0)

    def test_i9_a_claim_applied_after_the_finish_changes_nothing(self, engines: EngineCase) -> None:
        faulty, body = engines.faulty({1: Fault.APPLY_LATE}), Body("ran")
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", body)
        pass_retries(engines, RETRY_FIRST_US)
        assert running.result().value == "ran"
        before = engines.record_of("k")
        self.deliver(engines, faulty)
        assert engines.record_of("k") == before

    def test_i9_a_claim_applied_after_its_release_changes_nothing(
        self, engines: EngineCase
    ) -> None:
        faulty = engines.faulty({1: Fault.APPLY_LATE})
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", Body(error=NotStarted()))
        pass_retries(engines, RETRY_FIRST_US)
        with pytest.raises(NotStarted):
            running.result()
        self.deliver(engines, faulty)
        assert engines.record_of("k").state is State.ABSENT
        assert engines.once().run("op", "k", Body("ran")).value == "ran"

    def test_i9_a_release_applied_late_does_not_free_the_next_owners_key(
        self, engines: EngineCase
    ) -> None:
        faulty = engines.faulty({2: Fault.APPLY_LATE})
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", Body(error=NotStarted()))
        pass_retries(engines, RETRY_FIRST_US)
        with pytest.raises(NotStarted):
            running.result()
        assert isinstance(faulty.calls[1][0], Release)
        engines.hold("k")
        self.deliver(engines, faulty)
        with pytest.raises(InFlight):
            once.run("op", "k", Body())

    def deliver(self, engines: EngineCase, faulty: Any) -> None:
        """Apply the commands that the store has kept back."""
        delivered = faulty.deliver()
        if engines.asyncio:
            engines._loop().run(delivered)

    def test_i1_a_claim_applied_after_its_caller_left_runs_nothing(
        self, engines: EngineCase
    ) -> None:
        """The key is blocked for one lease and then unknown; the body never runs."""
        script = {1: Fault.APPLY_LATE, 2: Fault.VANISH, 3: Fault.VANISH}
        faulty, body = engines.faulty(script), Body()
        once = engines.once(faulty)
        running = engines.start(once.run, "op", "k", body)
        pass_retries(engines, RETRY_FIRST_US)
        pass_retries(engines, RETRY_FIRST_US * 2)
        with pytest.raises(StoreUnavailable):
            running.result()
        self.deliver(engines, faulty)
        with pytest.raises(InFlight):
            once.run("op", "k", body)
        engines.wait(LEASE)
        with pytest.raises(OutcomeUnknown):
            once.run("op", "k", body)
        assert body.runs == 0

    def test_a_result_that_cannot_be_stored_is_the_value_of_the_error(
        self, engines: EngineCase
    ) -> None:
        once = engines.once(engines.faulty(only(Finish, Fault.REFUSE)))
        running = engines.start(once.run, "op", "k", Body({"paid": (1, 2)}))
        engines.clock.wait_until_due(RETRY_FIRST_US)
        engines.clock.advance(LEASE)
        with pytest.raises(StoreUnavailable) as caught:
            running.result()
        assert caught.value.value == {"paid": [1, 2]}

    def test_a_step_after_the_first_lease_is_repeated_like_any_other(
        self, engines: EngineCase
    ) -> None:
        """The heartbeat has renewed the lease, so one lost SaveStep must not fail the body."""
        failed: list[int] = []

        def lose_one(number: int, commands: Sequence[Command]) -> Fault | None:
            if isinstance(commands[0], SaveStep) and commands[0].done and not failed:
                failed.append(number)
                return Fault.VANISH
            return None

        once = engines.once(engines.faulty(lose_one))

        def body(attempt: Any) -> Any:
            for _ in range(4):
                engines.next_beat()
            engines.clock.wait_until_due(LEASE // 3)
            return attempt.step("pay", lambda key: "paid")

        running = engines.start(once.run, "op", "k", body)
        with pytest.raises(TimeoutError):
            running.result(0.5)  # the engine sleeps before the retry
        engines.clock.wait_until_due(RETRY_FIRST_US)
        engines.clock.advance(RETRY_FIRST_US)
        assert running.result().value == "paid"
