"""Operations finished without their caller: asked about, or run to their end (I10, I11)."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.abandoned import BACKOFF_FIRST_US, backoff
from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Done, SaveStep
from oncekey.core.errors import ConfigurationError, InvalidKey, OperationFailed, Terminal
from oncekey.core.identity import child_uuid
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.core.step_format import ARGUMENTS, pack_step
from oncekey.testing.contract.base import FAILED, LEASE, PENDING, SECOND, SUCCEEDED, UNKNOWN, Held
from oncekey.testing.contract.bench import Bench, Engine

ORDER = {"cart": "c-1", "cents": 500}


class Ship:
    """An operation of two steps, which fails as often as it is told to."""

    def __init__(self, *, failures: int = 0, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.runs: list[tuple[str, Any]] = []
        self.sent: list[tuple[str, str]] = []

    def __call__(self, attempt: Any, request: Any) -> Any:
        self.runs.append((attempt.key, request))
        reserved = attempt.step("reserve", lambda key: self.call("reserve", key))
        if self.failures:
            self.failures -= 1
            raise self.error("on the way")
        return [reserved, attempt.step("ship", lambda key: self.call("ship", key))]

    def call(self, name: str, key: str) -> str:
        self.sent.append((name, key))
        return f"{name} ok"


def abandoned(
    bench: Bench,
    key: str = "k",
    *,
    arguments: bool = True,
    steps: tuple[str, ...] = (),
    **changes: Any,
) -> Held:
    """An owner that began and died; its lease is over."""
    held = bench.hold(key, request=ORDER, **{"operation": "op", "retry_safe": True, **changes})
    if arguments:
        body = pack_step({"key": key}, pack_value(JSON, ORDER))
        save(bench, held, ARGUMENTS, body)
    for name in steps:
        save(bench, held, name, pack_step({}, pack_value(JSON, f"{name} by the dead")))
    bench.wait(LEASE)
    return held


def save(bench: Bench, held: Held, name: str, body: bytes) -> None:
    bench.expect(Done, SaveStep(held.id, held.owner, held.fence, name, True, body))


def outcomes(engine: Engine) -> list[str]:
    return [done.outcome for done in engine.complete().done]


class Registered:
    def test_arguments_are_on_record_while_it_runs_and_given_as_kept(self, bench: Bench) -> None:
        once, seen = bench.once(), []

        def body(attempt: Any, request: Any) -> Any:
            seen.append(bench.record_of("k").steps[0].name)
            return request

        result = once.operation("op", retry_safe=True)(body).run("k", {"pair": (1, 2)})
        assert result.value == {"pair": [1, 2]}
        assert seen == [ARGUMENTS]
        status = once.get("op", "k")
        assert status is not None
        assert (status.arguments, status.steps) == ({"pair": [1, 2]}, ())

    def test_it_is_an_operation_like_others(self, bench: Bench) -> None:
        ship = Ship()
        operation = bench.once().operation("op")(ship)
        first, again = operation.run("k", ORDER), operation.run("k", ORDER)
        assert (first.replayed, again.replayed, again.value) == (False, True, first.value)
        assert len(ship.runs) == 1

    def test_a_request_that_cannot_be_kept_claims_nothing(self, bench: Bench) -> None:
        operation = bench.once().operation("op", max_bytes=100)(Ship())
        with pytest.raises(InvalidKey, match="plain values"):
            operation.run("k", {"bytes": b"raw"})
        with pytest.raises(InvalidKey, match="max_bytes=100"):
            operation.run("k", "x" * 200)
        assert bench.seen(bench.identity("k").id).record is None

    def test_mistakes_show_when_it_is_registered(self, bench: Bench) -> None:
        once = bench.once()
        once.operation("op")(Ship())
        with pytest.raises(ConfigurationError, match="registered already"):
            once.operation("op")(Ship())
        with pytest.raises(ConfigurationError, match="tries"):
            once.operation("op2", tries=0)(Ship())
        with pytest.raises(ConfigurationError, match="unknown option"):
            once.operation("op3", retry_save=True)(Ship())  # type: ignore[call-arg]


class Completing:
    def test_i10_an_abandoned_operation_is_run_to_its_end(self, bench: Bench) -> None:
        abandoned(bench, steps=("reserve",))
        ship, once = Ship(), bench.once()
        operation = once.operation("op", retry_safe=True)(ship)
        bench.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["succeeded"]
        assert ship.runs == [("k", ORDER)]
        assert ship.sent == [("ship", bench.identity_child("k", "ship"))]
        assert outcomes(once) == []
        # The caller who does come back gets the same answer.
        result = operation.run("k", ORDER)
        assert (result.value, result.replayed) == (["reserve by the dead", "ship ok"], True)

    def test_i5_an_owner_who_is_alive_is_left_alone(self, bench: Bench) -> None:
        bench.hold("k", operation="op", retry_safe=True)
        once = bench.once()
        once.operation("op", retry_safe=True)(Ship())
        assert once.complete().watching == 1
        bench.wait(LEASE - 1)
        assert outcomes(once) == []
        assert bench.record_of("k").state is PENDING

    def test_only_registered_operations_are_finished(self, bench: Bench) -> None:
        abandoned(bench)
        once = bench.once()
        once.operation("another", retry_safe=True)(Ship())
        completed = once.complete()
        assert (completed.done, completed.watching) == ((), 0)
        assert bench.record_of("k").state is PENDING

    def test_i11_a_failing_one_is_tried_again_ever_later_and_not_for_ever(
        self, bench: Bench
    ) -> None:
        abandoned(bench)
        ship, once = Ship(failures=100), bench.once()
        once.operation("op", retry_safe=True, tries=3)(ship)
        waited, heard = 0, []
        for _ in range(60):
            heard += outcomes(once)
            if heard[-1:] == ["left"]:
                break
            bench.wait(SECOND // 4)
            waited += SECOND // 4
        assert heard == ["error", "error", "error", "left"]
        assert bench.record_of("k").attempt == 4
        assert waited >= backoff(1) + backoff(2)
        assert [name for name, _ in ship.sent] == ["reserve"], "what was done is not repeated"

    def test_one_freed_halfway_is_finished_without_its_caller(self, bench: Bench) -> None:
        ship, once = Ship(failures=1), bench.once()
        operation = once.operation("op", retry_safe=True)(ship)
        with pytest.raises(ConnectionError):
            operation.run("k", ORDER)
        bench.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["succeeded"]
        assert [name for name, _ in ship.sent] == ["reserve", "ship"]

    def test_one_that_has_ended_is_left_in_peace(self, bench: Bench) -> None:
        ship, once = Ship(failures=1, error=Terminal), bench.once()
        operation = once.operation("op", retry_safe=True)(ship)
        with pytest.raises(Terminal):
            operation.run("k", ORDER)
        bench.wait(LEASE)
        assert outcomes(once) == []
        assert bench.record_of("k").state is FAILED

    def test_without_kept_arguments_its_caller_must_come_back(self, bench: Bench) -> None:
        abandoned(bench, arguments=False)
        once = bench.once()
        ship = Ship()
        operation = once.operation("op", retry_safe=True)(ship)
        bench.wait(BACKOFF_FIRST_US)
        (left,) = once.complete().done
        assert (left.outcome, "not kept" in left.detail) == ("left", True)
        assert outcomes(once) == [], "said once"
        assert operation.run("k", ORDER).attempt == 2

    def test_two_completers_finish_it_once(self, bench: Bench) -> None:
        abandoned(bench)
        ship = Ship()
        engines = [bench.once(), bench.once()]
        for once in engines:
            once.operation("op", retry_safe=True)(ship)
        bench.wait(BACKOFF_FIRST_US)
        rounds = [bench.start(once.complete) for once in engines]
        heard = sorted(done.outcome for each in rounds for done in each.result().done)
        assert heard in (["succeeded"], ["elsewhere", "succeeded"])
        assert len(ship.sent) == 2

    def test_of_many_all_are_finished_at_most_so_many_a_round(self, bench: Bench) -> None:
        held = [
            bench.hold(f"k{n}", request=ORDER, operation="op", retry_safe=True) for n in range(7)
        ]
        for n, each in enumerate(held):
            save(bench, each, ARGUMENTS, pack_step({"key": f"k{n}"}, pack_value(JSON, ORDER)))
        bench.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), bench.once()
        once.operation("op", retry_safe=True)(ship)
        assert [len(once.complete(3).done) for _ in range(4)] == [3, 3, 1, 0]
        assert sorted(key for key, _ in ship.runs) == [f"k{n}" for n in range(7)]

    def test_under_another_secret_nothing_is_touched(self, bench: Bench) -> None:
        """The kept key must lead to the record: else child keys would be others."""
        held = bench.hold("k", operation="op", retry_safe=True)
        save(bench, held, ARGUMENTS, pack_step({"key": "another"}, pack_value(JSON, ORDER)))
        bench.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), bench.once()
        once.operation("op", retry_safe=True)(ship)
        assert outcomes(once) == ["left"]
        assert ship.runs == []


class CompletingCorners:
    def test_i1_arguments_that_cannot_be_read_are_not_made_up(self, bench: Bench) -> None:
        held = bench.hold("k", operation="op", retry_safe=True)
        save(bench, held, ARGUMENTS, b"\x07of a later release")
        bench.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), bench.once()
        once.operation("op", retry_safe=True)(ship)
        (left,) = once.complete().done
        assert (left.outcome, "cannot be read" in left.detail) == ("left", True)
        assert ship.runs == []

    def test_i11_what_is_its_callers_takes_no_room(self, bench: Bench) -> None:
        once = bench.once()

        def body(attempt: Any, request: Any) -> None:
            raise ConnectionError("before any step")

        operation = once.operation("op", retry_safe=True)(body)
        for number in range(5):
            with pytest.raises(ConnectionError):
                operation.run(f"k{number}", ORDER)
        bench.wait(LEASE)
        completed = once.complete(1)
        assert (completed.done, completed.watching) == ((), 0)

    def test_one_registered_late_is_found(self, bench: Bench) -> None:
        abandoned(bench)
        bench.wait(BACKOFF_FIRST_US)
        ship, once = Ship(), bench.once()
        once.operation("another", retry_safe=True)(Ship())
        assert outcomes(once) == []
        once.operation("op", retry_safe=True)(ship)
        assert outcomes(once) == ["succeeded"]

    def test_a_body_that_wants_to_end_the_process_ends_only_itself(self, bench: Bench) -> None:
        abandoned(bench, "k1")
        bench.wait(BACKOFF_FIRST_US)
        once = bench.once()

        def body(attempt: Any, request: Any) -> None:
            raise SystemExit(1)

        once.operation("op", retry_safe=True)(body)
        (done,) = once.complete().done
        assert (done.outcome, done.detail) == ("error", "SystemExit")

    def test_an_error_of_an_operation_within_it_is_not_its_end(self, bench: Bench) -> None:
        abandoned(bench)
        bench.wait(BACKOFF_FIRST_US)
        once = bench.once()

        def body(attempt: Any, request: Any) -> None:
            raise OperationFailed("another one's", error_type="X", error_message="x")

        once.operation("op", retry_safe=True)(body)
        assert outcomes(once) == ["error"]

    def test_what_is_given_is_what_was_kept(self, bench: Bench) -> None:
        order, given = {"cents": 500}, []

        def body(attempt: Any, request: Any) -> None:
            order["cents"] = 900
            given.append(dict(request))

        bench.once().operation("op")(body).run("k", order)
        assert given == [{"cents": 500}]

    def test_a_listener_that_fails_ends_no_round(self, bench: Bench) -> None:
        for number in range(3):
            abandoned(bench, f"k{number}")
        bench.wait(BACKOFF_FIRST_US)
        once = bench.once()
        once.operation("op", retry_safe=True)(Ship())

        def tell(done: Any) -> None:
            raise BrokenPipeError

        assert len(once.complete(tell=tell).done) == 3

    @pytest.mark.parametrize("limit", [0, -1, "x", None])
    def test_a_limit_is_a_number_of_operations(self, bench: Bench, limit: Any) -> None:
        with pytest.raises(ConfigurationError, match="limit"):
            bench.once().complete(limit)


class CompletingUnknown:
    def asked(self, bench: Bench, answer: Any, **options: Any) -> tuple[Engine, list[UnknownKey]]:
        asked: list[UnknownKey] = []

        def recover(unknown: UnknownKey) -> Any:
            asked.append(unknown)
            return answer

        once = bench.once()
        self.ship = Ship()
        once.operation("op", recover=recover, **options)(self.ship)
        return once, asked

    def test_i10_an_unknown_key_is_decided_without_its_caller(self, bench: Bench) -> None:
        abandoned(bench, retry_safe=False, steps=("reserve",))
        once, asked = self.asked(bench, Recovery.succeeded("it was sent"))
        assert outcomes(once) == ["succeeded"]
        (unknown,) = asked
        assert (unknown.key, unknown.request) == ("k", ORDER)
        assert unknown.child_key("ship") == bench.identity_child("k", "ship")
        assert unknown.child_uuid("ship") == child_uuid("k", "ship", operation="op")
        assert [(step.name, step.value) for step in unknown.steps] == [
            ("reserve", "reserve by the dead")
        ]
        record = bench.record_of("k")
        assert (record.state, record.note) == (SUCCEEDED, "recover: it happened")
        assert self.ship.runs == []

    def test_one_that_never_happened_is_run_now(self, bench: Bench) -> None:
        abandoned(bench, retry_safe=False)
        once, _ = self.asked(bench, Recovery.free())
        assert outcomes(once) == ["succeeded"]
        assert self.ship.runs == [("k", ORDER)]

    def test_i11_nobody_can_tell_is_asked_ever_later_and_not_for_ever(self, bench: Bench) -> None:
        abandoned(bench, retry_safe=False)
        once, asked = self.asked(bench, None, tries=3)
        heard = []
        for _ in range(40):
            heard += outcomes(once)
            bench.wait(SECOND // 4)
        assert heard == ["unknown", "unknown", "unknown", "left"]
        assert len(asked) == 3
        assert bench.record_of("k").state in (UNKNOWN, PENDING)

    def test_recover_with_decides_what_is_run_elsewhere(self, bench: Bench) -> None:
        held = bench.hold("k", operation="op")
        intent = pack_step({"key": "ok1-sent"})
        bench.expect(Done, SaveStep(held.id, held.owner, held.fence, "pay", False, intent))
        bench.wait(LEASE)
        asked: list[str] = []

        def recover(unknown: UnknownKey) -> Recovery:
            asked.append(unknown.child_key("pay"))
            with pytest.raises(InvalidKey, match="the key itself is not stored"):
                unknown.child_key("never begun")
            with pytest.raises(InvalidKey, match="the key itself is not stored"):
                unknown.child_uuid("pay")
            return Recovery.free()

        once = bench.once()
        once.recover_with("op", recover)
        assert outcomes(once) == ["freed"]
        assert asked == ["ok1-sent"]

    def test_a_recover_that_raises_is_asked_again_later(self, bench: Bench) -> None:
        abandoned(bench, retry_safe=False)
        once = bench.once()

        def recover(unknown: UnknownKey) -> Any:
            raise ConnectionError("the bank is down")

        once.recover_with("op", recover)
        assert outcomes(once) == ["error"]
        assert outcomes(once) == []
        bench.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["error"]
