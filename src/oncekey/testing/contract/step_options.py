"""Engine tests of step options: stored requests, probes, external ids, parallel steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oncekey.core.commands import Done
from oncekey.core.errors import ConfigurationError, InvalidKey, NotStarted, Terminal
from oncekey.core.step_format import StepResult
from oncekey.testing.contract.engine_case import TIMEOUT_SECONDS, EngineCase
from oncekey.testing.contract.store_case import LEASE, SECOND


class Provider:
    """A provider without idempotency: every call that arrives charges."""

    def __init__(self) -> None:
        self.charged: list[Any] = []
        self.probed = 0
        self.lose_answers = 0
        self.arrive_late = False

    def charge(self, key: str, request: Any = None) -> StepResult[Any]:
        if self.arrive_late:
            raise TimeoutError("sent, and not there yet")
        self.charged.append((key, request))
        if self.lose_answers:
            self.lose_answers -= 1
            raise TimeoutError("charged, and the answer was lost")
        number = len(self.charged)
        return StepResult({"charge": number}, external_id=f"ch_{number}", status=201)

    def find(self, key: str, request: Any = None) -> StepResult[Any] | None:
        self.probed += 1
        for number, (known, _) in enumerate(self.charged, 1):
            if known == key:
                return StepResult({"charge": number}, external_id=f"ch_{number}", status="found")
        return None


def charging(provider: Provider, **options: Any) -> Any:
    def body(attempt: Any) -> Any:
        return attempt.step("pay", provider.charge, probe=provider.find, **options)

    return body


class StepRequests:
    def test_the_request_is_kept_and_sent_again_as_it_was(self, engines: EngineCase) -> None:
        provider, times = Provider(), iter([1, 2, 3])
        provider.lose_answers = 1

        def body(attempt: Any) -> Any:
            request = {"cents": 5, "at": next(times), "pair": (1, 2)}
            return attempt.step("pay", provider.charge, request=request)

        with pytest.raises(TimeoutError):
            engines.once().run("op", "k", body, retry_safe=True)
        status = engines.once().get("op", "k")
        assert status is not None
        assert (status.state, status.steps[0].request) == (
            "freed",
            {"cents": 5, "at": 1, "pair": [1, 2]},
        )
        assert engines.once().run("op", "k", body, retry_safe=True).value == {"charge": 2}
        (first, second) = provider.charged
        assert first == second
        assert first[1] == {"cents": 5, "at": 1, "pair": [1, 2]}

    def test_a_request_that_cannot_be_kept_is_refused_before_the_call(
        self, engines: EngineCase
    ) -> None:
        provider = Provider()

        def body(attempt: Any) -> Any:
            return attempt.step("pay", provider.charge, request={"when": object()})

        with pytest.raises(ConfigurationError, match="written down before it is sent"):
            engines.once().run("op", "k", body)
        assert provider.charged == []

    def test_i11_a_request_obeys_max_bytes(self, engines: EngineCase) -> None:
        def body(attempt: Any) -> Any:
            return attempt.step("pay", Provider().charge, request="x" * 500)

        with pytest.raises(ConfigurationError, match="max_bytes is 400"):
            engines.once().run("op", "k", body, max_bytes=400)

    def test_what_the_other_side_calls_it_is_shown(self, engines: EngineCase) -> None:
        provider = Provider()
        once = engines.once()
        once.run("op", "k", lambda attempt: attempt.step("pay", provider.charge))
        status = once.get("op", "k")
        assert status is not None
        (step,) = status.steps
        assert (step.value, step.external_id, step.status) == ({"charge": 1}, "ch_1", "201")

    def test_names_of_our_own_are_refused(self, engines: EngineCase) -> None:
        with pytest.raises(InvalidKey, match="oncekey keeps for itself"):
            engines.once().run("op", "k", lambda a: a.step("oncekey:x", lambda key: 1))


class Probes:
    def test_i1_a_lost_answer_is_found_and_not_charged_again(self, engines: EngineCase) -> None:
        provider = Provider()
        provider.lose_answers = 1
        with pytest.raises(TimeoutError):
            engines.once().run("op", "k", charging(provider), retry_safe=True)
        result = engines.once().run("op", "k", charging(provider), retry_safe=True)
        assert (result.value, len(provider.charged)) == ({"charge": 1}, 1)

    def test_a_first_run_does_not_probe(self, engines: EngineCase) -> None:
        provider = Provider()
        engines.once().run("op", "k", charging(provider))
        assert provider.probed == 0

    def test_a_no_after_a_takeover_is_believed_at_once(self, engines: EngineCase) -> None:
        """The dead owner's call has had a whole lease to arrive."""
        provider = Provider()
        held = engines.hold("k", retry_safe=True)
        engines.expect(Done, held.step("pay", body=b"an intent"))
        engines.wait(LEASE)
        result = engines.once().run("op", "k", charging(provider), retry_safe=True)
        assert (result.value, provider.probed) == ({"charge": 1}, 1)

    def test_i1_a_no_is_waited_out_while_the_call_may_arrive(self, engines: EngineCase) -> None:
        provider = Provider()
        provider.arrive_late = True
        once = engines.once()
        body = charging(provider, probe_grace="9s", request={"cents": 5})
        with pytest.raises(TimeoutError):
            once.run("op", "k", body, retry_safe=True)
        retry = engines.start(once.run, "op", "k", body, retry_safe=True)
        engines.clock.wait_until_due(9 * SECOND)
        assert (provider.probed, provider.charged) == (1, [])
        provider.arrive_late = False
        provider.charge(engines.identity_child("k", "pay"))  # the delayed call arrives
        engines.wait(9 * SECOND)
        assert retry.result(TIMEOUT_SECONDS).value == {"charge": 1}
        assert len(provider.charged) == 1

    def test_a_step_tried_twice_in_one_body_probes_too(self, engines: EngineCase) -> None:
        provider = Provider()
        provider.lose_answers = 1

        def body(attempt: Any) -> Any:
            try:
                return attempt.step("pay", provider.charge, probe=provider.find, probe_grace="0s")
            except TimeoutError:
                return attempt.step("pay", provider.charge, probe=provider.find, probe_grace="0s")

        assert engines.once().run("op", "k", body).value == {"charge": 1}
        assert len(provider.charged) == 1

    def test_settle_without_a_probe_is_a_mistake(self, engines: EngineCase) -> None:
        with pytest.raises(ConfigurationError, match="probe_grace= is for a probe="):
            engines.once().run("op", "k", lambda a: a.step("pay", lambda key: 1, probe_grace="1s"))


class ParallelSteps:
    def test_steps_run_side_by_side_and_are_all_kept(self, engines: EngineCase) -> None:
        meet = threading.Barrier(3)

        def call(key: str) -> str:
            meet.wait(TIMEOUT_SECONDS)
            return key

        def body(attempt: Any) -> Any:
            with attempt.parallel() as steps:
                futures = {name: steps.step(name, call) for name in ("a", "b", "c")}
            return {name: future.result() for name, future in futures.items()}

        once = engines.once()
        value = once.run("op", "k", body).value
        assert value == {name: engines.identity_child("k", name) for name in ("a", "b", "c")}
        status = once.get("op", "k")
        assert status is not None
        assert sorted(step.name for step in status.steps if step.done) == ["a", "b", "c"]

    def test_i1_one_that_fails_leaves_the_others_their_end(self, engines: EngineCase) -> None:
        failed, calls = threading.Event(), []

        def fail(key: str) -> None:
            calls.append("fail")
            failed.set()
            if calls.count("fail") == 1:
                raise ConnectionError("gone")

        def slow(key: str) -> str:
            calls.append("slow")
            assert failed.wait(TIMEOUT_SECONDS)
            return "done"

        def body(attempt: Any) -> Any:
            with attempt.parallel() as steps:
                done = steps.step("slow", slow)
                steps.step("fail", fail)
            return done.result()

        once = engines.once()
        with pytest.raises(ConnectionError):
            once.run("op", "k", body, retry_safe=True)
        assert once.run("op", "k", body, retry_safe=True).value == "done"
        assert sorted(calls) == ["fail", "fail", "slow"]

    def test_of_several_errors_the_final_one_counts(self, engines: EngineCase) -> None:
        def body(attempt: Any) -> Any:
            def raising(error: Exception) -> Any:
                def step(key: str) -> None:
                    raise error

                return step

            with attempt.parallel() as steps:
                steps.step("a", raising(NotStarted("not me")))
                steps.step("b", raising(ConnectionError("gone")))
                steps.step("c", raising(Terminal("declined")))

        with pytest.raises(Terminal, match="declined") as caught:
            engines.once().run("op", "k", body, retry_safe=True)
        assert len(caught.value.__notes__) == 2

    def test_one_name_twice_at_once_is_a_mistake(self, engines: EngineCase) -> None:
        inside, go = threading.Event(), threading.Event()

        def hold(key: str) -> str:
            inside.set()
            assert go.wait(TIMEOUT_SECONDS)
            return "held"

        def body(attempt: Any) -> Any:
            with attempt.parallel() as steps:
                first = steps.step("a", hold)
                assert inside.wait(TIMEOUT_SECONDS)
                with pytest.raises(ConfigurationError, match="running already"):
                    attempt.step("a", hold)
                go.set()
            return first.result()

        assert engines.once().run("op", "k", body).value == "held"

    def test_a_step_after_the_body_has_ended_is_a_mistake(self, engines: EngineCase) -> None:
        kept: list[Any] = []
        engines.once().run("op", "k", kept.append)
        with pytest.raises(ConfigurationError, match="wait for every step"):
            kept[0].step("late", lambda key: key)
