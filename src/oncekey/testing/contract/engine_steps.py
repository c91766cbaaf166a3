"""Engine tests of steps and child keys: finished steps are skipped, intents come first (I1, I8)."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.errors import (
    ConfigurationError,
    InvalidKey,
    Mismatch,
    NotReplayable,
    OperationFailed,
)
from oncekey.core.identity import child_key, child_uuid
from oncekey.core.record import Step
from oncekey.core.step_format import unpack_step
from oncekey.testing.contract.engine_case import Body, Engine, EngineCase
from oncekey.testing.contract.store_case import ABSENT, LEASE, StoreCase


class Checkout:
    """A body of two steps; `fail_after` raises once that step is saved."""

    def __init__(self, *, fail_after: str = "") -> None:
        self.fail_after = fail_after
        self.sent: list[tuple[str, str]] = []
        self.fences: list[int] = []

    def call(self, name: str, key: str) -> str:
        self.sent.append((name, key))
        return f"{name} ok"

    def __call__(self, attempt: Any) -> list[str]:
        self.fences.append(attempt.fence)
        done = []
        for name in ("reserve", "pay"):
            done.append(attempt.step(name, lambda key, name=name: self.call(name, key)))
            if self.fail_after == name:
                raise ConnectionError(f"lost after {name}")
        return done


class EngineSteps:
    def fail_then_succeed(self, engines: EngineCase, once: Engine, fail_after: str) -> Checkout:
        checkout = Checkout(fail_after=fail_after)
        with pytest.raises(ConnectionError):
            once.run("op", "k", checkout, retry_safe=True, request="cart")
        checkout.fail_after = ""
        result = once.run("op", "k", checkout, retry_safe=True, request="cart")
        assert (result.value, result.attempt) == (["reserve ok", "pay ok"], 2)
        assert checkout.fences == sorted(set(checkout.fences))
        return checkout

    @pytest.mark.parametrize("fail_after", ["reserve", "pay"])
    def test_i1_finished_steps_are_skipped_after_a_retry_safe_error(
        self, engines: EngineCase, fail_after: str
    ) -> None:
        checkout = self.fail_then_succeed(engines, engines.once(), fail_after)
        assert [name for name, _ in checkout.sent] == ["reserve", "pay"]

    def test_i1_finished_steps_are_skipped_after_a_takeover(self, engines: EngineCase) -> None:
        engines.dead_owner("k", retry_safe=True, steps={"reserve": "reserved by the dead"})
        checkout = Checkout()
        result = engines.once().run("op", "k", checkout, retry_safe=True)
        assert result.value == ["reserved by the dead", "pay ok"]
        assert [name for name, _ in checkout.sent] == ["pay"]

    @pytest.mark.parametrize("parallel", [False, True])
    def test_a_step_name_used_twice_in_one_attempt_is_refused(
        self, engines: EngineCase, parallel: bool
    ) -> None:
        """The second call would be skipped and given the first one's result. The same holds if an
        earlier attempt has finished the step: its result is returned once."""
        engines.dead_owner("k", retry_safe=True, steps={"mail": "sent by the dead"})
        mailed: list[str] = []

        def mail(key: str, request: str = "") -> str:
            mailed.append(request)
            return request

        def side_by_side(attempt: Any, *asked: tuple[str, str]) -> None:
            with attempt.parallel() as steps:
                for name, request in asked:
                    steps.step(name, mail, request=request)

        def again(attempt: Any, name: str) -> None:
            if parallel:
                side_by_side(attempt, (name, "b"))
            else:
                attempt.step(name, mail, request="b")

        def body(attempt: Any) -> str:
            assert attempt.step("mail:1", mail, request="a") == "a"
            assert attempt.step("mail", mail) == "sent by the dead"
            for name in ("mail", "mail:1"):
                with pytest.raises(ConfigurationError, match="number those of a loop"):
                    again(attempt, name)
            if parallel:
                with pytest.raises(ConfigurationError, match="in this attempt"):
                    side_by_side(attempt, ("both", "c"), ("both", "d"))
            return "done"

        assert engines.once().run("op", "k", body, retry_safe=True).value == "done"
        assert mailed == (["a", "c"] if parallel else ["a"])

    def test_a_step_that_raised_may_be_called_again_in_the_same_attempt(
        self, engines: EngineCase
    ) -> None:
        calls: list[str] = []

        def pay(key: str) -> str:
            calls.append(key)
            if len(calls) == 1:
                raise TimeoutError("perhaps it arrived")
            return "paid"

        def body(attempt: Any) -> Any:
            with pytest.raises(TimeoutError):
                attempt.step("pay", pay)
            return attempt.step("pay", pay)

        assert engines.once().run("op", "k", body).value == "paid"
        assert calls[0] == calls[1]

    def test_an_unfinished_step_is_sent_again_with_the_same_child_key(
        self, engines: EngineCase
    ) -> None:
        keys: list[str] = []

        def body(attempt: Any) -> Any:
            def pay(key: str) -> str:
                keys.append(key)
                if len(keys) == 1:
                    raise TimeoutError("perhaps it arrived")
                return "paid"

            return attempt.step("pay", pay)

        once = engines.once()
        with pytest.raises(TimeoutError):
            once.run("op", "k", body, retry_safe=True, scope="t")
        assert once.run("op", "k", body, retry_safe=True, scope="t").value == "paid"
        assert keys == [child_key("k", "pay", scope="t", operation="op")] * 2

    def test_the_intent_is_in_the_store_before_the_call(self, engines: EngineCase) -> None:
        during: list[tuple[Step, ...]] = []

        def body(attempt: Any) -> Any:
            def pay(key: str) -> str:
                case: StoreCase = engines
                during.append(case.record(engines.identity("k").id).steps)
                return key

            return attempt.step("pay", pay)

        key = engines.once().run("op", "k", body).value
        ((intent,),) = during
        assert (intent.name, intent.done) == ("pay", False)
        uuid = str(child_uuid("k", "pay", operation="op"))
        assert unpack_step(intent.body)[0] == {"key": key, "uuid": uuid}
        (saved,) = engines.record_of("k").steps
        assert (saved.name, saved.done) == ("pay", True)

    def test_an_unfinished_step_is_shown_with_every_form_that_it_may_have_sent(
        self, engines: EngineCase
    ) -> None:
        """The store keeps no raw key here, so people cannot make the UUID themselves."""
        sent: list[str] = []

        def body(attempt: Any) -> Any:
            def pay(key: str) -> str:
                sent.extend((key, str(attempt.child_uuid("pay"))))
                raise TimeoutError("perhaps it arrived")

            return attempt.step("pay", pay)

        once = engines.once()
        with pytest.raises(TimeoutError):
            once.run("op", "k", body, retry_safe=True)
        status = once.get("op", "k")
        assert status is not None
        (pay,) = status.steps
        assert [pay.intent, pay.child_uuid] == sent

    def test_a_freed_key_with_steps_stays_bound_to_its_request(self, engines: EngineCase) -> None:
        once = engines.once()
        with pytest.raises(ConnectionError):
            once.run("op", "k", Checkout(fail_after="reserve"), retry_safe=True, request="cart")
        assert engines.record_of("k").state is ABSENT
        with pytest.raises(Mismatch):
            once.run("op", "k", Checkout(), retry_safe=True, request="another cart")
        assert once.run("op", "k", Checkout(), retry_safe=True, request="cart").attempt == 2

    def test_i8_child_keys_differ_per_tenant_operation_key_and_step(
        self, engines: EngineCase
    ) -> None:
        once, keys = engines.once(), []

        def body(attempt: Any) -> None:
            for name in ("a", "b"):
                keys.append(attempt.child_key(name))

        for scope, operation, key in [
            ("t1", "op", "k"), ("t2", "op", "k"), ("t1", "op2", "k"), ("t1", "op", "k2")
        ]:  # fmt: skip
            once.run(operation, key, body, scope=scope)
        assert len(set(keys)) == 8

    def test_i3_a_step_gives_the_first_run_what_a_re_run_gets(self, engines: EngineCase) -> None:
        seen: list[Any] = []

        def body(attempt: Any) -> None:
            seen.append(attempt.step("pair", lambda key: {"pair": (1, 2)}))
            if len(seen) == 1:
                raise ConnectionError

        once = engines.once()
        with pytest.raises(ConnectionError):
            once.run("op", "k", body, retry_safe=True)
        once.run("op", "k", body, retry_safe=True)
        assert seen == [{"pair": [1, 2]}] * 2

    def test_a_step_too_large_to_keep_is_never_repeated(self, engines: EngineCase) -> None:
        large = Body("x" * 1_000)

        def body(attempt: Any) -> str:
            value: str = attempt.step("large", lambda key: large(attempt))
            assert len(value) == 1_000
            raise ConnectionError

        once = engines.once()
        with pytest.raises(ConnectionError):
            once.run("op", "k", body, retry_safe=True, max_bytes=100)
        with pytest.raises(NotReplayable, match="large"):
            once.run("op", "k", body, retry_safe=True, max_bytes=100)
        assert large.runs == 1

    def test_i11_an_operation_has_at_most_a_hundred_steps(self, engines: EngineCase) -> None:
        def body(attempt: Any) -> None:
            for number in range(101):
                attempt.step(f"s{number}", lambda key: None)

        with pytest.raises(InvalidKey, match="at most 100"):
            engines.once().run("op", "k", body)

    def test_a_failing_step_fails_a_body_that_is_not_retry_safe_for_good(
        self, engines: EngineCase
    ) -> None:
        def body(attempt: Any) -> None:
            def refuse(key: str) -> None:
                raise ValueError("declined")

            attempt.step("pay", refuse)

        once = engines.once()
        with pytest.raises(ValueError, match="declined"):
            once.run("op", "k", body)
        with pytest.raises(OperationFailed, match="declined"):
            once.run("op", "k", body)

    def test_steps_of_a_long_body_are_saved_after_its_first_lease(
        self, engines: EngineCase
    ) -> None:
        checkout = Checkout()

        def body(attempt: Any) -> Any:
            for _ in range(5):
                engines.next_beat()
            engines.clock.wait_until_due(LEASE // 3)
            return checkout(attempt)

        assert engines.once().run("op", "k", body).value == ["reserve ok", "pay ok"]
