"""Engine tests of run, guard and get: replays, mismatches, codecs (I2, I3, I7, I13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from oncekey.core.codec import ENVELOPE_VERSION
from oncekey.core.commands import Claimed, Done
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    Mismatch,
    NotReplayable,
)
from oncekey.core.guarantees import Level
from oncekey.testing.contract.engine_case import Body, EngineCase, HeldBody, wait_until_true
from oncekey.testing.contract.store_case import LEASE, SECOND, SUCCEEDED, claim, token
from oncekey.testing.faulty_store import Fault


@dataclass(frozen=True)
class Money:
    cents: int
    currency: str


@dataclass(frozen=True)
class Receipt:
    id: str
    total: Money
    lines: list[Money]


class Runs:
    def test_i3_a_first_callers_value_is_not_the_bodys_own_object(
        self, engines: EngineCase
    ) -> None:
        """Whoever holds the body's object may change it; what callers get stays what is stored."""
        own = {"eur": [100]}
        first = engines.once().run("op", "k", Body(own))
        own["eur"].append(7)
        assert first.value == engines.once().run("op", "k", Body("never")).value == {"eur": [100]}

    def test_i1_a_retry_gets_the_first_runs_answer(self, engines: EngineCase) -> None:
        once, body = engines.once(), Body({"id": 7, "ok": True})
        first = once.run("op", "k", body)
        again = [engines.once(cache=0).run("op", "k", body), once.run("op", "k", body)]
        assert (first.value, first.replayed, first.attempt) == ({"id": 7, "ok": True}, False, 1)
        assert [(r.value, r.replayed, r.attempt, r.fence) for r in again] == [
            (first.value, True, 1, first.fence)
        ] * 2
        assert body.runs == 1

    @pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.VANISH])
    def test_i13_a_result_is_stored_before_its_caller_has_it(
        self, engines: EngineCase, fault: Fault
    ) -> None:
        """The first finish does not reach the store, so the caller waits for the second one."""
        faulty = engines.faulty({2: fault})
        running = engines.start(engines.once(faulty).run, "op", "k", Body("charged"))
        faulty.wait_calls(2)

        def ends_in_time() -> bool:
            engines.clock.advance(SECOND // 1_000)
            return running.done()

        wait_until_true(ends_in_time)
        assert running.result().value == "charged"
        assert engines.record_of("k").state is SUCCEEDED
        assert faulty.kinds() == ["Claim", "Finish", "Finish"]

    @pytest.mark.parametrize(
        "value", [None, 0, "", [], {}, False, 1.5, "Zürich 🎉", [1, [2, {"a": None}]], 10**30]
    )
    def test_i3_every_plain_value_comes_back(self, engines: EngineCase, value: Any) -> None:
        once = engines.once(cache=0)
        first = once.run("op", "k", Body(value))
        again = once.run("op", "k", Body("never"))
        assert first.value == again.value == value
        assert type(first.value) is type(again.value)

    def test_i3_the_first_caller_gets_what_a_retry_gets(self, engines: EngineCase) -> None:
        once = engines.once(cache=0)
        first = once.run("op", "k", Body({"pair": (1, 2)}))
        assert first.value == {"pair": [1, 2]} == once.run("op", "k", Body()).value

    def test_i8_scopes_operations_and_keys_do_not_meet(self, engines: EngineCase) -> None:
        once, body = engines.once(), Body(1)
        for scope, operation, key in [
            ("a", "b", "c"), ("", "ab", "c"), ("a", "bc", "c"),
            ("ab", "b", "c"), ("a", "b", "cc"), ("", "b", "c"),
        ]:  # fmt: skip
            assert not once.run(operation, key, body, scope=scope).replayed
        assert body.runs == 6

    def test_i7_another_request_under_the_key_is_a_mismatch(self, engines: EngineCase) -> None:
        once, body = engines.once(), Body(1)
        once.run("op", "k", body, request={"cents": 5, "to": "x"})
        assert once.run("op", "k", body, request={"to": "x", "cents": 5}).replayed
        for engine in (once, engines.once(cache=0)):
            with pytest.raises(Mismatch):
                engine.run("op", "k", body, request={"cents": 6, "to": "x"})
        assert body.runs == 1

    def test_i7_mismatch_says_which_call_had_no_request(self, engines: EngineCase) -> None:
        once = engines.once(cache=0)
        once.run("op", "without", Body(1))
        with pytest.raises(Mismatch, match="first used without request=, this call came with one"):
            once.run("op", "without", Body(1), request={"cents": 5})
        once.run("op", "with", Body(1), request={"cents": 5})
        with pytest.raises(Mismatch, match="first used with request=, this call came without one"):
            once.run("op", "with", Body(1))

    def test_i7_mismatch_is_told_before_in_flight(self, engines: EngineCase) -> None:
        once = engines.once()
        engines.hold("k", request="this")
        with pytest.raises(Mismatch):
            once.run("op", "k", Body(), request="that")
        with pytest.raises(InFlight):
            once.run("op", "k", Body(), request="this")

    def test_in_flight_says_when_to_come_back(self, engines: EngineCase) -> None:
        once, body = engines.once(), HeldBody("done")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        engines.clock.advance(SECOND)
        for engine in (once, engines.once()):
            with pytest.raises(InFlight) as caught:
                engine.run("op", "k", Body())
            assert caught.value.retry_after == (LEASE - SECOND) / SECOND
            assert caught.value.status == 409
        body.go.set()
        assert running.result().value == "done"

    def test_get_shows_a_key_and_changes_nothing(self, engines: EngineCase) -> None:
        once = engines.once()
        assert once.get("op", "k") is None
        once.run("op", "k", Body({"a": 1}), scope="s")
        before = engines.dump([engines.identity("k", scope="s").id])
        status = once.get("op", "k", scope="s")
        assert status is not None
        assert (status.state, status.value, status.attempt) == ("succeeded", {"a": 1}, 1)
        assert engines.dump([engines.identity("k", scope="s").id]) == before
        assert once.get("op", "k") is None

    def test_get_calls_a_dead_owners_key_unknown(self, engines: EngineCase) -> None:
        engines.hold("k")
        once = engines.once()
        status = once.get("op", "k")
        assert status is not None
        assert status.state == "pending"
        engines.wait(LEASE)
        status = once.get("op", "k")
        assert status is not None
        assert status.state == "unknown"

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", None, 1.5, True, b"bytes"])
    def test_an_unusable_key_is_refused_before_anything_runs(
        self, engines: EngineCase, key: Any
    ) -> None:
        body = Body()
        with pytest.raises(InvalidKey):
            engines.once().run("op", key, body)
        assert body.runs == 0


class Guards:
    def test_guard_runs_once_per_key_and_returns_the_value(self, engines: EngineCase) -> None:
        once: Any = engines.once()
        calls: list[tuple[str, int]] = []

        def charge(order: str, cents: int) -> dict[str, Any]:
            """Charges."""
            calls.append((order, cents))
            return {"order": order, "cents": cents}

        charge = once.guard(
            "charge", key=lambda order, cents: order, request=lambda order, cents: cents
        )(charge)

        assert charge("o-1", 5) == charge("o-1", 5) == {"order": "o-1", "cents": 5}
        assert charge("o-2", cents=6)["cents"] == 6
        with pytest.raises(Mismatch):
            charge("o-1", 7)
        assert calls == [("o-1", 5), ("o-2", 6)]
        assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")

    def test_guard_gives_the_attempt_to_who_wants_it(self, engines: EngineCase) -> None:
        once: Any = engines.once()

        def work(key: str, *, attempt: Any) -> list[Any]:
            return [attempt.scope, attempt.operation, attempt.key, attempt.number]

        guard = once.guard("op", key=lambda key: key, scope=lambda key: "tenant " + key)
        assert guard(work)("k") == ["tenant k", "op", "k", 1]

    def test_guard_finds_mistakes_at_decoration(self, engines: EngineCase) -> None:
        once = engines.once()
        with pytest.raises(ConfigurationError, match="unknown option"):
            once.guard("op", key=lambda: "k", leese="1s")  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError, match="key must be"):
            once.guard("op", key="k")(lambda: 1)  # type: ignore[arg-type]


class UnstorableResults:
    def test_i1_a_result_too_large_is_given_once_and_never_run_again(
        self, engines: EngineCase
    ) -> None:
        body = Body("x" * 100)
        first = engines.once().run("op", "k", body, max_bytes=50)
        assert (first.value, first.replayed) == ("x" * 100, False)
        with pytest.raises(NotReplayable, match="max_bytes"):
            engines.once().run("op", "k", body, max_bytes=50)
        assert body.runs == 1

    @pytest.mark.parametrize("value", [object(), {1: "a"}, {"a": {2: 3}}, float("nan"), b"raw"])
    def test_i1_a_result_nobody_can_store_is_told_at_once_with_its_value(
        self, engines: EngineCase, value: Any
    ) -> None:
        once, body = engines.once(), Body(value)
        with pytest.raises(NotReplayable) as caught:
            once.run("op", "k", body)
        assert caught.value.value is value
        for engine in (once, engines.once()):
            with pytest.raises(NotReplayable) as caught:
                engine.run("op", "k", body)
            assert caught.value.value is None
        assert body.runs == 1

    def test_i3_a_dataclass_comes_back_as_itself(self, engines: EngineCase) -> None:
        receipt = Receipt("r", Money(5, "EUR"), [Money(2, "EUR"), Money(3, "EUR")])
        once = engines.once(cache=0)
        first = once.run("op", "k", Body(receipt), codec=Receipt)
        assert first.value == once.run("op", "k", Body(), codec=Receipt).value == receipt

    def test_i3_a_pydantic_model_comes_back_as_itself(self, engines: EngineCase) -> None:
        pydantic = pytest.importorskip("pydantic")
        model: Any = pydantic.create_model("Person", name=(str, ...), tags=(tuple[str, ...], ()))
        person = model(name="Ann", tags=("a", "b"))
        once = engines.once(cache=0)
        for key, value, codec in [
            ("model", person, model),
            ("adapter", [person], pydantic.TypeAdapter(list[model])),
        ]:
            first = once.run("op", key, Body(value), codec=codec)
            assert first.value == once.run("op", key, Body(), codec=codec).value == value

    def test_another_codec_fails_closed(self, engines: EngineCase) -> None:
        body = Body(Money(1, "EUR"))
        engines.once().run("op", "k", body, codec=Money)
        with pytest.raises(NotReplayable, match="codec"):
            engines.once().run("op", "k", body)
        assert body.runs == 1

    @pytest.mark.parametrize(
        "stored", [b"", b"\x01", bytes([ENVELOPE_VERSION + 1, 1, 4]) + b"json1", b"\x01\x09\x00x"]
    )
    def test_an_outcome_of_another_release_fails_closed(
        self, engines: EngineCase, stored: bytes
    ) -> None:
        held, body = engines.hold("k"), Body()
        engines.expect(Done, held.finish(SUCCEEDED, stored))
        with pytest.raises(NotReplayable):
            engines.once().run("op", "k", body)
        assert body.runs == 0

    def test_a_fingerprint_of_another_release_fails_closed(self, engines: EngineCase) -> None:

        body = Body()
        id = engines.identity("k").id
        engines.expect(Claimed, claim(id, token(), fingerprint=b"\x09new way"))
        with pytest.raises(NotReplayable, match="format 9"):
            engines.once().run("op", "k", body)
        assert body.runs == 0

    def test_s8_another_secret_is_refused(self, engines: EngineCase) -> None:
        engines.once(secret="a" * 32).run("op", "k", Body(1))
        with pytest.raises(ConfigurationError, match="secret"):
            engines.once(secret="b" * 32).run("op", "k", Body(1))
        with pytest.raises(ConfigurationError, match="secret"):
            engines.once().run("op", "k", Body(1))
        assert engines.once(secret="a" * 32).run("op", "k", Body(2)).replayed

    @pytest.mark.parametrize("level", ["at_most_once", "fenced"])
    def test_no_operation_runs_below_the_level_it_requires(
        self, engines: EngineCase, level: str
    ) -> None:
        once, body = engines.once(), Body(1)
        if once.guarantee.level is Level.BEST_EFFORT:
            with pytest.raises(ConfigurationError, match="best effort"):
                once.run("op", "k", body, require=level, retry_safe=True)
            with pytest.raises(ConfigurationError, match="best effort"):
                once.guard("op", key=lambda: "k", require=level)
            assert body.runs == 0
        else:
            once.run("op", "k", body, require=level, retry_safe=True)
            with pytest.raises(ConfigurationError, match="requires fenced"):
                once.run("op", "k2", body, require="fenced", retry_safe=False)
            assert body.runs == 1
