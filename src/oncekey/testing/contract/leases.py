"""Engine tests of heartbeats, lost leases and late starts (I5, I14), with a fake clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncekey.core.codec import JSON, pack_error, pack_value
from oncekey.core.commands import Claimed, Command, Done, Renew, Resolve
from oncekey.core.errors import (
    InFlight,
    LeaseLost,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
)
from oncekey.core.events import EventKind
from oncekey.core.recovery import Recovery
from oncekey.testing.contract.engine_case import Body, EngineCase, Faulty, HeldBody, wait_until_true
from oncekey.testing.contract.store_case import (
    AUDIT,
    FAILED,
    KEEP,
    LEASE,
    PENDING,
    SECOND,
    SUCCEEDED,
    HeldClaim,
    claim,
    token,
)
from oncekey.testing.faulty_store import Fault

POLL_MAX = 250_000


def hold_renewals(number: int, commands: Sequence[Command]) -> Fault | None:
    return Fault.HOLD_BEFORE if any(isinstance(c, Renew) for c in commands) else None


class Heartbeats:
    def test_i5_a_long_body_is_kept_alive(self, engines: EngineCase) -> None:
        once, body = engines.once(), HeldBody("slow")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        for _ in range(10):
            engines.next_beat()
            with pytest.raises(InFlight):
                engines.once().run("op", "k", Body())
        engines.clock.wait_until_due(LEASE // 3)  # the tenth renewal has arrived
        assert engines.record_of("k").lease_until == engines.now() + LEASE
        body.go.set()
        assert running.result().value == "slow"
        assert engines.once().run("op", "k", Body()).value == "slow"

    def test_i5_a_failing_renewal_is_repeated_within_the_lease(self, engines: EngineCase) -> None:
        faulty = engines.faulty({2: Fault.REFUSE, 3: Fault.VANISH, 4: Fault.LOSE_REPLY})
        once, body = engines.once(faulty), HeldBody("slow")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        engines.next_beat()
        for calls in (3, 4, 5):
            engines.clock.wait_until_due(LEASE // 12)
            engines.clock.advance(LEASE // 12)
            faulty.wait_calls(calls)
        engines.clock.wait_until_due(LEASE // 3)
        assert faulty.kinds() == ["Claim", "Renew", "Renew", "Renew", "Renew"]
        assert not body.attempt.lost
        body.go.set()
        assert running.result().value == "slow"

    def test_attempt_renew_extends_the_lease(self, engines: EngineCase) -> None:
        once, body = engines.once(), HeldBody()
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        engines.clock.advance(SECOND)
        body.attempt.renew()
        assert engines.record_of("k").lease_until == engines.now() + LEASE
        body.go.set()
        running.result()

    def test_many_running_bodies_are_all_kept_alive(self, engines: EngineCase) -> None:
        once = engines.once()
        bodies = [HeldBody(n) for n in range(5)]
        running = [engines.start(once.run, "op", f"k{n}", body) for n, body in enumerate(bodies)]
        for body in bodies:
            body.wait_inside()

        def all_renewed() -> bool:
            late = engines.now() + LEASE // 2
            return all(engines.record_of(f"k{n}").lease_until > late for n in range(5))

        for _ in range(4):
            # After each beat: a renewal still in flight must not miss two beats in a row.
            engines.next_beat()
            wait_until_true(all_renewed)
        for body in bodies:
            body.go.set()
        assert [future.result().value for future in running] == list(range(5))


class LostLeases:
    def overtake(self, engines: EngineCase, faulty: Faulty, body: HeldBody) -> HeldClaim:
        """The owner's renewal hangs, its lease ends, and another owner takes the key over."""
        body.wait_inside()
        engines.next_beat()
        faulty.wait_held()
        engines.clock.advance(LEASE)
        held = body.attempt
        winner = claim(engines.identity("k").id, token("win"), retry_safe=True)
        record = engines.record(winner.id)
        assert record.fence == held.fence
        reply = engines.expect(
            Claimed, claim(record.id, winner.owner, fingerprint=record.fingerprint, retry_safe=True)
        )
        assert reply.taken_over
        return HeldClaim(engines, record.id, winner.owner, reply.fence)

    def lose(
        self, engines: EngineCase, before_release: Any
    ) -> tuple[object, HeldBody, list[EventKind]]:
        faulty = engines.faulty(hold_renewals)
        once, body = engines.once(faulty), HeldBody("loser")
        kinds = engines.events_of(once)
        running = engines.start(once.run, "op", "k", body, retry_safe=True)
        winner = self.overtake(engines, faulty, body)
        before_release(winner)
        faulty.release()
        wait_until_true(lambda: body.attempt.lost)
        with pytest.raises(LeaseLost):
            body.attempt.check()
        body.go.set()
        try:
            outcome: object = running.result().value
        except Exception as error:
            outcome = error
        return outcome, body, kinds

    def test_i2_the_loser_is_flagged_and_its_outcome_never_stored(
        self, engines: EngineCase
    ) -> None:
        outcome, _, kinds = self.lose(engines, lambda winner: None)
        assert isinstance(outcome, LeaseLost)
        assert engines.record_of("k").state is PENDING
        assert kinds[:2] == [EventKind.CLAIMED, EventKind.LOST]
        if not engines.asyncio:  # nothing stopped its body, so it returned a value
            assert kinds[2:] == [EventKind.UNRECORDED]
            assert outcome.value == "loser"

    def test_the_loser_gets_the_winners_answer(self, engines: EngineCase) -> None:
        def win(winner: HeldClaim) -> None:
            engines.expect(Done, winner.finish(SUCCEEDED, pack_value(JSON, "winner")))

        outcome, _, kinds = self.lose(engines, win)
        assert outcome == "winner"
        assert kinds[:2] == [EventKind.CLAIMED, EventKind.REPLAYED]
        assert engines.once().run("op", "k", Body()).value == "winner"

    def test_the_loser_gets_the_winners_failure(self, engines: EngineCase) -> None:
        def fail(winner: HeldClaim) -> None:
            engines.expect(Done, winner.finish(FAILED, pack_error(KeyError("x"))))

        outcome, _, _ = self.lose(engines, fail)
        assert isinstance(outcome, OperationFailed)
        assert outcome.error_type == "KeyError"

    def test_i14_a_paused_owner_that_is_not_retry_safe_says_how_it_ended(
        self, engines: EngineCase
    ) -> None:
        """Everybody else found the key unknown; only this owner knows how it ended."""
        faulty = engines.faulty(hold_renewals)
        once, body = engines.once(faulty), HeldBody("late")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        engines.next_beat()
        faulty.wait_held()
        engines.clock.advance(LEASE)
        with pytest.raises(OutcomeUnknown):
            engines.once().run("op", "k", Body())
        faulty.release()
        wait_until_true(lambda: body.attempt.lost)
        body.go.set()
        assert running.result().value == "late"
        again = engines.once().run("op", "k", Body())
        assert (again.value, again.replayed) == ("late", True)

    def test_i1_a_store_clock_set_ahead_by_more_than_lease_and_keep_lets_nobody_run_beside_it(
        self, engines: EngineCase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The owner's own clock goes on as before, so it does not know that it is late."""
        body, second = HeldBody("first"), Body("second")
        running = engines.start(engines.once().run, "op", "k", body)
        body.wait_inside()
        wall = engines.clock.wall
        monkeypatch.setattr(engines.clock, "wall", lambda: wall() + 20 * (LEASE + KEEP + AUDIT))
        for _ in range(3):
            engines.store.sweep()
        with pytest.raises(OutcomeUnknown):
            engines.once().run("op", "k", second)
        body.go.set()
        assert running.result().value == "first"
        assert engines.once().run("op", "k", second).value == "first"
        assert second.runs == 0

    def test_i14_a_store_away_for_longer_than_the_lease_costs_no_result(
        self, engines: EngineCase
    ) -> None:
        """Nobody may take over, so nobody stops the body, and its outcome is stored later."""
        faulty = engines.faulty()
        once, body = engines.once(faulty), HeldBody("charged")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        faulty.down = True
        for _ in range(20):
            engines.clock.wait_until_due(LEASE // 3)
            engines.clock.advance(LEASE // 3)
        assert body.attempt.lost
        faulty.down = False
        body.go.set()
        assert running.result().value == "charged"
        assert engines.once().run("op", "k", Body()).value == "charged"

    def test_i14_a_result_that_cannot_be_stored_is_given_to_the_caller(
        self, engines: EngineCase
    ) -> None:
        faulty = engines.faulty()
        once, body = engines.once(faulty), HeldBody("charged")
        kinds = engines.events_of(once)
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        faulty.down = True
        body.go.set()
        while not running.done():
            engines.clock.advance(SECOND // 10)
        with pytest.raises(StoreUnavailable) as caught:
            running.result()
        assert caught.value.value == "charged"
        assert kinds == [EventKind.CLAIMED, EventKind.UNAVAILABLE, EventKind.UNRECORDED]

    def test_lease_lost_is_never_stored_as_the_operations_failure(
        self, engines: EngineCase
    ) -> None:
        faulty = engines.faulty()
        once, body = engines.once(faulty), HeldBody(error=LeaseLost("attempt.check() says so"))
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        body.go.set()
        with pytest.raises(LeaseLost):
            running.result()
        with pytest.raises(OutcomeUnknown):
            engines.once().run("op", "k", Body())

    def test_a_step_that_comes_late_renews_first(self, engines: EngineCase) -> None:
        """Late by its own clock does not mean overtaken; the store decides."""
        faulty = engines.faulty(hold_renewals)

        def body(attempt: Any) -> Any:
            engines.clock.advance(LEASE + 1)
            assert attempt.lost
            faulty.script = {}
            faulty.release()
            return attempt.step("pay", lambda key: "paid")

        if engines.asyncio:
            pytest.skip("its bodies are on another thread than their steps")
        assert engines.once(faulty).run("op", "k", body).value == "paid"

    def test_attempt_renew_of_a_lost_attempt_raises(self, engines: EngineCase) -> None:
        faulty = engines.faulty(hold_renewals)
        once, body = engines.once(faulty), HeldBody("loser")
        running = engines.start(once.run, "op", "k", body, retry_safe=True)
        self.overtake(engines, faulty, body)
        faulty.script = {}
        faulty.release()
        wait_until_true(lambda: body.attempt.lost)
        with pytest.raises(LeaseLost):
            body.attempt.renew()
        body.go.set()
        with pytest.raises(LeaseLost):
            running.result()


class LateStarts:
    """Tests of owners that are paused between the claim's reply and the body's first line."""

    def late(
        self, engines: EngineCase, meanwhile: Any, **options: Any
    ) -> tuple[object, Body, list[str]]:
        faulty = engines.faulty({1: Fault.HOLD_AFTER})
        once, body = engines.once(faulty), Body("mine")
        running = engines.start(once.run, "op", "k", body, **options)
        faulty.wait_held()
        engines.clock.advance(2 * LEASE)
        meanwhile()
        faulty.release()
        try:
            outcome: object = running.result().value
        except Exception as error:
            outcome = error
        return outcome, body, faulty.kinds()

    def test_i5_a_late_start_renews_its_claim_before_the_body_begins(
        self, engines: EngineCase
    ) -> None:
        outcome, body, kinds = self.late(engines, lambda: None)
        assert (outcome, body.runs) == ("mine", 1)
        assert kinds == ["Claim", "Renew", "Finish"]
        record = engines.record_of("k")
        assert record.lease_until == engines.now() + LEASE

    def test_i1_a_late_body_does_not_begin_beside_the_one_who_took_over(
        self, engines: EngineCase
    ) -> None:
        def take_over() -> None:
            assert engines.hold("k", retry_safe=True).fence

        outcome, body, _ = self.late(engines, take_over, retry_safe=True)
        assert isinstance(outcome, InFlight)
        assert body.runs == 0

    def test_a_late_start_gets_the_answer_of_whoever_was_faster(self, engines: EngineCase) -> None:
        def win() -> None:
            winner = engines.hold("k", retry_safe=True)
            engines.expect(Done, winner.finish(SUCCEEDED, pack_value(JSON, "winner")))

        outcome, body, _ = self.late(engines, win, retry_safe=True)
        assert (outcome, body.runs) == ("winner", 0)

    def test_i1_a_late_body_does_not_begin_once_recovery_has_freed_its_key(
        self, engines: EngineCase
    ) -> None:
        def free_and_run() -> None:
            record = engines.record_of("k")
            found = Recovery.free()
            other = engines.once()
            free = Resolve(record.id, record.fence, found.state, b"", found.note)
            engines.expect(Done, free)
            assert other.run("op", "k", Body("other")).value == "other"

        outcome, body, _ = self.late(engines, free_and_run)
        assert (outcome, body.runs) == ("other", 0)

    def test_a_key_given_up_before_its_late_body_began_is_run(self, engines: EngineCase) -> None:
        """Only the owner knows that its body has not begun."""

        def give_up() -> None:
            with pytest.raises(OutcomeUnknown):
                engines.once().run("op", "k", Body())

        outcome, body, kinds = self.late(engines, give_up)
        assert (outcome, body.numbers) == ("mine", [2])
        assert kinds == ["Claim", "Renew", "Release", "Claim", "Finish"]

    def test_a_start_in_time_costs_no_further_command(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        assert engines.once(faulty).run("op", "k", Body("mine")).value == "mine"
        assert faulty.kinds() == ["Claim", "Finish"]
