"""Engine tests of failures, dead owners and recovery (I1, I10)."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.codec import pack_error
from oncekey.core.commands import Done, Lost
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    NotStarted,
    OperationFailed,
    OutcomeUnknown,
    Terminal,
)
from oncekey.core.events import EventKind
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.testing.contract.engine_case import Body, EngineCase, Interrupted
from oncekey.testing.contract.store_case import ABSENT, FAILED, LEASE, SECOND, SUCCEEDED, UNKNOWN


class Failures:
    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_terminal_is_stored_and_every_retry_gets_it(
        self, engines: EngineCase, retry_safe: bool
    ) -> None:
        body = Body(error=Terminal("card is stolen"))
        with pytest.raises(Terminal, match="card is stolen"):
            engines.once().run("op", "k", body, retry_safe=retry_safe)
        for _ in range(2):
            with pytest.raises(OperationFailed) as caught:
                engines.once().run("op", "k", body, retry_safe=retry_safe)
            assert caught.value.error_type == "Terminal"
            assert caught.value.error_message == "card is stolen"
            assert "card is stolen" in str(caught.value)
        assert body.runs == 1

    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_not_started_frees_the_key(self, engines: EngineCase, retry_safe: bool) -> None:
        once = engines.once()
        with pytest.raises(NotStarted):
            once.run("op", "k", Body(error=NotStarted()), retry_safe=retry_safe, request="a")
        assert engines.record_of("k").state is ABSENT
        again = once.run("op", "k", Body("ran"), retry_safe=retry_safe, request="corrected")
        assert (again.value, again.replayed, again.attempt) == ("ran", False, 2)

    def test_i1_an_error_of_a_body_that_is_not_retry_safe_is_stored(
        self, engines: EngineCase
    ) -> None:
        body = Body(error=ValueError("timeout, perhaps charged"))
        with pytest.raises(ValueError, match="perhaps charged"):
            engines.once().run("op", "k", body)
        with pytest.raises(OperationFailed) as caught:
            engines.once().run("op", "k", body)
        assert caught.value.error_type == "ValueError"
        assert body.runs == 1
        assert engines.record_of("k").state is FAILED

    def test_an_error_of_a_retry_safe_body_frees_the_key(self, engines: EngineCase) -> None:
        once = engines.once()
        with pytest.raises(ValueError, match="flaky"):
            once.run("op", "k", Body(error=ValueError("flaky")), retry_safe=True)
        second = Body("fine")
        result = once.run("op", "k", second, retry_safe=True)
        assert (result.value, result.attempt, second.numbers) == ("fine", 2, [2])

    def test_i1_an_interrupted_body_leaves_the_outcome_unknown(self, engines: EngineCase) -> None:
        body = Body(error=Interrupted())
        with pytest.raises(Interrupted):
            engines.once().run("op", "k", body)
        assert engines.record_of("k").state is UNKNOWN
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                engines.once().run("op", "k", body)
        assert body.runs == 1

    def test_an_interrupted_retry_safe_body_frees_the_key(self, engines: EngineCase) -> None:
        with pytest.raises(Interrupted):
            engines.once().run("op", "k", Body(error=Interrupted()), retry_safe=True)
        assert engines.once().run("op", "k", Body("fine"), retry_safe=True).value == "fine"

    def test_a_long_error_message_is_cut_not_refused(self, engines: EngineCase) -> None:
        with pytest.raises(ValueError, match="ééé"):
            engines.once().run("op", "k", Body(error=ValueError("é" * 100_000)))
        with pytest.raises(OperationFailed) as caught:
            engines.once().run("op", "k", Body())
        assert 1_000 < len(caught.value.error_message) <= 4_000


class DeadOwners:
    def test_i5_nobody_takes_over_before_the_lease_is_over(self, engines: EngineCase) -> None:
        engines.hold("k", retry_safe=True)
        engines.wait(LEASE - 1)
        with pytest.raises(InFlight):
            engines.once().run("op", "k", Body(), retry_safe=True)

    def test_i10_a_retry_safe_key_is_taken_over_right_after_the_lease(
        self, engines: EngineCase
    ) -> None:
        dead, body = engines.dead_owner("k", retry_safe=True), Body("second")
        once = engines.once()
        kinds = engines.events_of(once)
        result = once.run("op", "k", body, retry_safe=True)
        assert (result.value, result.replayed, result.attempt) == ("second", False, 2)
        assert result.fence == body.fences[0] > dead.fence
        assert kinds == [EventKind.TAKEOVER, EventKind.FINISHED]

    @pytest.mark.parametrize(("dead", "new"), [(False, False), (False, True), (True, False)])
    def test_i1_a_dead_owners_key_that_is_not_retry_safe_is_unknown_and_never_runs_again(
        self, engines: EngineCase, dead: bool, new: bool
    ) -> None:
        engines.dead_owner("k", retry_safe=dead)
        body = Body()
        for _ in range(3):
            with pytest.raises(OutcomeUnknown) as caught:
                engines.once().run("op", "k", body, retry_safe=new)
            assert caught.value.status == 409
            assert not hasattr(caught.value, "retry_after")
            engines.wait(LEASE)
        assert body.runs == 0

    def test_i10_a_zombie_that_finishes_late_finds_its_outcome_refused(
        self, engines: EngineCase
    ) -> None:
        zombie = engines.dead_owner("k", retry_safe=True)
        engines.once().run("op", "k", Body("winner"), retry_safe=True)
        assert engines.unchanged_by(zombie.finish(), zombie.renew()) == [Lost(), Lost()]
        assert engines.once().run("op", "k", Body(), retry_safe=True).value == "winner"

    def test_an_unknown_key_is_fresh_again_after_an_explicit_keep_unknown_only(
        self, engines: EngineCase
    ) -> None:
        engines.dead_owner("friday")
        engines.dead_owner("k", keep_unknown=3_600 * SECOND)
        once = engines.once()
        with pytest.raises(OutcomeUnknown):
            once.run("op", "k", Body())
        engines.wait(3_600 * SECOND)
        assert once.run("op", "k", Body("fresh")).attempt == 1
        engines.wait(3 * 86_400 * SECOND)
        with pytest.raises(OutcomeUnknown):
            once.run("op", "friday", Body())


class Recoveries:
    def recover_with(
        self, engines: EngineCase, answer: object
    ) -> tuple[Any, Body, list[UnknownKey]]:
        dead = engines.dead_owner("k", steps={"reserve": "r-1"})
        asked: list[UnknownKey] = []

        def recover(unknown: UnknownKey) -> object:
            asked.append(unknown)
            if isinstance(answer, Exception):
                raise answer
            return answer

        body, once = Body("ran again"), engines.once(cache=0)
        try:
            outcome: Any = once.run("op", "k", body, recover=recover).value
        except Exception as error:
            outcome = error
        for unknown in asked:
            assert (unknown.operation, unknown.key, unknown.fence) == ("op", "k", dead.fence)
            assert [step.name for step in unknown.steps] == ["reserve"]
            assert unknown.child_key("reserve").startswith("ok1-")
        return outcome, body, asked

    def test_recover_that_says_succeeded_stores_its_value(self, engines: EngineCase) -> None:
        outcome, body, asked = self.recover_with(engines, Recovery.succeeded({"id": 5}))
        assert (outcome, body.runs, len(asked)) == ({"id": 5}, 0, 1)
        record = engines.record_of("k")
        assert (record.state, record.note) == (SUCCEEDED, "recover: it happened")
        assert engines.once().run("op", "k", body).value == {"id": 5}

    def test_recover_that_says_failed_stores_the_failure(self, engines: EngineCase) -> None:
        outcome, body, _ = self.recover_with(
            engines, Recovery.failed("declined", note="asked bank")
        )
        assert isinstance(outcome, OperationFailed)
        assert (outcome.error_message, body.runs) == ("declined", 0)
        assert engines.record_of("k").note == "asked bank"

    def test_recover_that_says_free_runs_the_body(self, engines: EngineCase) -> None:
        outcome, body, _ = self.recover_with(engines, Recovery.free())
        assert (outcome, body.runs, body.numbers) == ("ran again", 1, [2])

    @pytest.mark.parametrize("answer", [Recovery.free(), Recovery.failed("declined")], ids=str)
    def test_i1_recover_that_says_free_is_not_believed_while_the_owner_may_wake(
        self, engines: EngineCase, answer: Recovery
    ) -> None:
        """The owner was paused before the provider got its call, and then goes on."""
        engines.dead_owner("k")
        once, body = engines.once(cache=0), Body("second")
        options: dict[str, Any] = {"recover": lambda unknown: answer, "recover_grace": "30s"}
        for left in (30, 1):
            with pytest.raises(InFlight) as caught:
                once.run("op", "k", body, **options)
            assert caught.value.retry_after == left
            engines.wait((left - 1) * SECOND)
        assert body.runs == 0
        engines.wait(SECOND)
        if answer.state is FAILED:
            with pytest.raises(OperationFailed):
                once.run("op", "k", body, **options)
        else:
            assert once.run("op", "k", body, **options).value == "second"

    def test_recover_that_says_succeeded_is_believed_at_once(self, engines: EngineCase) -> None:
        engines.dead_owner("k")
        found = engines.once().run(
            "op",
            "k",
            Body(),
            recover=lambda unknown: Recovery.succeeded("ch_1"),
            recover_grace="30s",
        )
        assert found.value == "ch_1"

    def test_recover_is_believed_at_once_if_the_owner_reported_its_interruption(
        self, engines: EngineCase
    ) -> None:
        held = engines.hold("k")
        engines.expect(Done, held.finish(UNKNOWN, pack_error(KeyboardInterrupt())))
        again = Body("again")
        once, grace = engines.once(), "30s"
        found = once.run(
            "op", "k", again, recover=lambda unknown: Recovery.free(), recover_grace=grace
        )
        assert found.value == "again"

    def test_recover_that_returns_none_leaves_the_key_unknown(self, engines: EngineCase) -> None:
        outcome, body, asked = self.recover_with(engines, None)
        assert isinstance(outcome, OutcomeUnknown)
        assert (body.runs, len(asked)) == (0, 1)
        assert engines.record_of("k").state is UNKNOWN

    def test_recover_that_raises_leaves_the_key_unknown(self, engines: EngineCase) -> None:
        outcome, body, _ = self.recover_with(engines, ConnectionError("bank is down"))
        assert isinstance(outcome, ConnectionError)
        assert (body.runs, engines.record_of("k").state) == (0, UNKNOWN)

    def test_recover_that_returns_another_type_is_refused(self, engines: EngineCase) -> None:
        outcome, body, _ = self.recover_with(engines, {"state": "ok"})
        assert isinstance(outcome, ConfigurationError)
        assert (body.runs, engines.record_of("k").state) == (0, UNKNOWN)

    def test_recovery_gives_an_event(self, engines: EngineCase) -> None:
        engines.dead_owner("k")
        once = engines.once()
        kinds = engines.events_of(once)
        once.run("op", "k", Body(), recover=lambda unknown: Recovery.succeeded(1))
        assert kinds == [EventKind.RECOVERED, EventKind.REPLAYED]
