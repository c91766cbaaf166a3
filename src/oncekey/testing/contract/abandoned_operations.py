"""Tests of operations that are finished without their caller: run to their end (I10, I11)."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.abandoned import BACKOFF_FIRST_US, backoff
from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Done, SaveStep
from oncekey.core.errors import ConfigurationError, InvalidKey, OperationFailed, Terminal
from oncekey.core.step_format import ARGUMENTS, pack_step
from oncekey.testing.contract.engine_case import Engine, EngineCase
from oncekey.testing.contract.store_case import (
    FAILED,
    LEASE,
    PENDING,
    SECOND,
    HeldClaim,
)

ORDER = {"cart": "c-1", "cents": 500}


class Ship:
    """An operation of two steps that fails a given number of times."""

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
    engines: EngineCase,
    key: str = "k",
    *,
    arguments: bool = True,
    steps: tuple[str, ...] = (),
    **changes: Any,
) -> HeldClaim:
    """Makes the key of an owner that began the operation and died; its lease is over."""
    held = engines.hold(key, request=ORDER, **{"label": "op", "retry_safe": True, **changes})
    if arguments:
        body = pack_step({"key": key}, pack_value(JSON, ORDER))
        save(engines, held, ARGUMENTS, body)
    for name in steps:
        save(engines, held, name, pack_step({}, pack_value(JSON, f"{name} by the dead")))
    engines.wait(LEASE)
    return held


def save(engines: EngineCase, held: HeldClaim, name: str, body: bytes) -> None:
    engines.expect(Done, SaveStep(held.id, held.owner, held.fence, name, True, body))


def outcomes(engine: Engine) -> list[str]:
    return [done.outcome for done in engine.complete().done]


class RegisteredOperations:
    def test_arguments_of_an_operation_are_stored_while_it_runs(self, engines: EngineCase) -> None:
        once, seen = engines.once(), []

        def body(attempt: Any, request: Any) -> Any:
            seen.append(engines.record_of("k").steps[0].name)
            return request

        result = once.operation("op", retry_safe=True)(body).run("k", {"pair": (1, 2)})
        assert result.value == {"pair": [1, 2]}
        assert seen == [ARGUMENTS]
        status = once.get("op", "k")
        assert status is not None
        assert (status.arguments, status.steps) == ({"pair": [1, 2]}, ())

    def test_a_registered_operation_replays_like_any_other(self, engines: EngineCase) -> None:
        ship = Ship()
        operation = engines.once().operation("op")(ship)
        first, again = operation.run("k", ORDER), operation.run("k", ORDER)
        assert (first.replayed, again.replayed, again.value) == (False, True, first.value)
        assert len(ship.runs) == 1

    def test_an_operation_whose_request_cannot_be_stored_claims_nothing(
        self, engines: EngineCase
    ) -> None:
        operation = engines.once().operation("op", max_bytes=100)(Ship())
        with pytest.raises(InvalidKey, match="plain values"):
            operation.run("k", {"bytes": b"raw"})
        with pytest.raises(InvalidKey, match="max_bytes=100"):
            operation.run("k", "x" * 200)
        assert engines.seen(engines.identity("k").id).record is None

    def test_mistakes_in_an_operation_are_refused_at_registration(
        self, engines: EngineCase
    ) -> None:
        once = engines.once()
        once.operation("op")(Ship())
        with pytest.raises(ConfigurationError, match="registered already"):
            once.operation("op")(Ship())
        with pytest.raises(ConfigurationError, match="tries"):
            once.operation("op2", tries=0)(Ship())
        with pytest.raises(ConfigurationError, match="unknown option"):
            once.operation("op3", retry_save=True)(Ship())  # type: ignore[call-arg]


class AbandonedOperations:
    def test_i10_an_abandoned_operation_is_run_to_its_end(self, engines: EngineCase) -> None:
        abandoned(engines, steps=("reserve",))
        ship, once = Ship(), engines.once()
        operation = once.operation("op", retry_safe=True)(ship)
        engines.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["succeeded"]
        assert ship.runs == [("k", ORDER)]
        assert ship.sent == [("ship", engines.identity_child("k", "ship"))]
        assert outcomes(once) == []
        # A caller who does come back gets the same result.
        result = operation.run("k", ORDER)
        assert (result.value, result.replayed) == (["reserve by the dead", "ship ok"], True)

    def test_i5_an_owner_who_is_alive_is_left_alone(self, engines: EngineCase) -> None:
        engines.hold("k", label="op", retry_safe=True)
        once = engines.once()
        once.operation("op", retry_safe=True)(Ship())
        assert once.complete().watching == 1
        engines.wait(LEASE - 1)
        assert outcomes(once) == []
        assert engines.record_of("k").state is PENDING

    def test_only_registered_operations_are_finished(self, engines: EngineCase) -> None:
        abandoned(engines)
        once = engines.once()
        once.operation("another", retry_safe=True)(Ship())
        completed = once.complete()
        assert (completed.done, completed.watching) == ((), 0)
        assert engines.record_of("k").state is PENDING

    def test_i11_a_failing_operation_is_tried_again_with_backoff_and_a_limit(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines)
        ship, once = Ship(failures=100), engines.once()
        once.operation("op", retry_safe=True, tries=3)(ship)
        waited, heard = 0, []
        for _ in range(60):
            heard += outcomes(once)
            if heard[-1:] == ["left"]:
                break
            engines.wait(SECOND // 4)
            waited += SECOND // 4
        assert heard == ["error", "error", "error", "left"]
        assert engines.record_of("k").attempt == 4
        assert waited >= backoff(1) + backoff(2)
        assert [name for name, _ in ship.sent] == ["reserve"], "what was done is not repeated"

    def test_an_operation_freed_halfway_is_finished_without_its_caller(
        self, engines: EngineCase
    ) -> None:
        ship, once = Ship(failures=1), engines.once()
        operation = once.operation("op", retry_safe=True)(ship)
        with pytest.raises(ConnectionError):
            operation.run("k", ORDER)
        engines.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["succeeded"]
        assert [name for name, _ in ship.sent] == ["reserve", "ship"]

    def test_an_ended_operation_is_not_run_again(self, engines: EngineCase) -> None:
        ship, once = Ship(failures=1, error=Terminal), engines.once()
        operation = once.operation("op", retry_safe=True)(ship)
        with pytest.raises(Terminal):
            operation.run("k", ORDER)
        engines.wait(LEASE)
        assert outcomes(once) == []
        assert engines.record_of("k").state is FAILED

    def test_an_operation_without_stored_arguments_needs_its_caller(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines, arguments=False)
        once = engines.once()
        ship = Ship()
        operation = once.operation("op", retry_safe=True)(ship)
        engines.wait(BACKOFF_FIRST_US)
        (left,) = once.complete().done
        assert (left.outcome, "not kept" in left.detail) == ("left", True)
        assert outcomes(once) == [], "said once"
        assert operation.run("k", ORDER).attempt == 2

    def test_two_completers_finish_an_operation_once(self, engines: EngineCase) -> None:
        abandoned(engines)
        ship = Ship()
        completers = [engines.once(), engines.once()]
        for once in completers:
            once.operation("op", retry_safe=True)(ship)
        engines.wait(BACKOFF_FIRST_US)
        rounds = [engines.start(once.complete) for once in completers]
        heard = sorted(done.outcome for each in rounds for done in each.result().done)
        assert heard in (["succeeded"], ["elsewhere", "succeeded"])
        assert len(ship.sent) == 2

    def test_a_completer_takes_up_at_most_limit_operations_at_a_time(
        self, engines: EngineCase
    ) -> None:
        held = [engines.hold(f"k{n}", request=ORDER, label="op", retry_safe=True) for n in range(7)]
        for n, each in enumerate(held):
            save(engines, each, ARGUMENTS, pack_step({"key": f"k{n}"}, pack_value(JSON, ORDER)))
        engines.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), engines.once()
        once.operation("op", retry_safe=True)(ship)
        assert [len(once.complete(3).done) for _ in range(4)] == [3, 3, 1, 0]
        assert sorted(key for key, _ in ship.runs) == [f"k{n}" for n in range(7)]

    def test_a_completer_with_another_secret_touches_nothing(self, engines: EngineCase) -> None:
        """The kept key must lead to the record; otherwise child keys would differ."""
        held = engines.hold("k", label="op", retry_safe=True)
        save(engines, held, ARGUMENTS, pack_step({"key": "another"}, pack_value(JSON, ORDER)))
        engines.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), engines.once()
        once.operation("op", retry_safe=True)(ship)
        assert outcomes(once) == ["left"]
        assert ship.runs == []


class AbandonedOperationLimits:
    def test_i1_an_operation_with_unreadable_arguments_is_not_run(
        self, engines: EngineCase
    ) -> None:
        held = engines.hold("k", label="op", retry_safe=True)
        save(engines, held, ARGUMENTS, b"\x07of a later release")
        engines.wait(LEASE + BACKOFF_FIRST_US)
        ship, once = Ship(), engines.once()
        once.operation("op", retry_safe=True)(ship)
        (left,) = once.complete().done
        assert (left.outcome, "cannot be read" in left.detail) == ("left", True)
        assert ship.runs == []

    def test_i11_keys_left_to_their_callers_do_not_fill_the_watchlist(
        self, engines: EngineCase
    ) -> None:
        once = engines.once()

        def body(attempt: Any, request: Any) -> None:
            raise ConnectionError("before any step")

        operation = once.operation("op", retry_safe=True)(body)
        for number in range(5):
            with pytest.raises(ConnectionError):
                operation.run(f"k{number}", ORDER)
        engines.wait(LEASE)
        completed = once.complete(1)
        assert (completed.done, completed.watching) == ((), 0)

    def test_an_operation_registered_after_the_first_listing_is_found(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines)
        engines.wait(BACKOFF_FIRST_US)
        ship, once = Ship(), engines.once()
        once.operation("another", retry_safe=True)(Ship())
        assert outcomes(once) == []
        once.operation("op", retry_safe=True)(ship)
        assert outcomes(once) == ["succeeded"]

    def test_a_body_that_raises_system_exit_does_not_end_the_completer(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines, "k1")
        engines.wait(BACKOFF_FIRST_US)
        once = engines.once()

        def body(attempt: Any, request: Any) -> None:
            raise SystemExit(1)

        once.operation("op", retry_safe=True)(body)
        (done,) = once.complete().done
        assert (done.outcome, done.detail) == ("error", "SystemExit")

    def test_an_error_of_a_nested_operation_is_not_stored_as_the_outer_ones(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines)
        engines.wait(BACKOFF_FIRST_US)
        once = engines.once()

        def body(attempt: Any, request: Any) -> None:
            raise OperationFailed("another one's", error_type="X", error_message="x")

        once.operation("op", retry_safe=True)(body)
        assert outcomes(once) == ["error"]

    def test_a_completer_passes_the_stored_arguments(self, engines: EngineCase) -> None:
        order, given = {"cents": 500}, []

        def body(attempt: Any, request: Any) -> None:
            order["cents"] = 900
            given.append(dict(request))

        engines.once().operation("op")(body).run("k", order)
        assert given == [{"cents": 500}]

    def test_a_raising_on_completion_does_not_stop_the_completer(self, engines: EngineCase) -> None:
        for number in range(3):
            abandoned(engines, f"k{number}")
        engines.wait(BACKOFF_FIRST_US)
        once = engines.once()
        once.operation("op", retry_safe=True)(Ship())

        def on_completion(done: Any) -> None:
            raise BrokenPipeError

        assert len(once.complete(on_completion=on_completion).done) == 3

    @pytest.mark.parametrize("limit", [0, -1, "x", None])
    def test_complete_refuses_a_limit_that_is_no_positive_number(
        self, engines: EngineCase, limit: Any
    ) -> None:
        with pytest.raises(ConfigurationError, match="limit"):
            engines.once().complete(limit)
