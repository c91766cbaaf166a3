"""Engine tests of subscribers, of the replay cache, and of concurrent callers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oncekey.core.errors import InFlight, Mismatch, NotStarted, OutcomeUnknown, WaitTimeout
from oncekey.core.events import Event, EventKind
from oncekey.engine.batches.duplicates import FOLLOWER_POLL_US
from oncekey.testing.contract.engine_case import Body, EngineCase, HeldBody
from oncekey.testing.contract.store_case import KEEP, LEASE, SECOND

CROWD = 64
POLL_MAX = 250_000


class Subscribers:
    def test_subscribers_get_one_event_per_decision(self, engines: EngineCase) -> None:
        once = engines.once(cache=0)
        kinds = engines.events_of(once)
        once.run("op", "k", Body(1), request="a")
        assert kinds == [EventKind.CLAIMED, EventKind.FINISHED]
        kinds.clear()
        once.run("op", "k", Body(1), request="a")
        with pytest.raises(Mismatch):
            once.run("op", "k", Body(1), request="b")
        assert kinds == [EventKind.REPLAYED, EventKind.MISMATCH]
        kinds.clear()
        with pytest.raises(NotStarted):
            once.run("op", "k2", Body(error=NotStarted()))
        assert kinds == [EventKind.CLAIMED, EventKind.RELEASED]
        kinds.clear()
        engines.hold("k3")
        with pytest.raises(InFlight):
            once.run("op", "k3", Body())
        waiting = engines.start(once.run, "op", "k3", Body(), wait="1s")
        engines.clock.wait_until_due(POLL_MAX)
        engines.clock.advance(SECOND)
        with pytest.raises(WaitTimeout):
            waiting.result()
        assert kinds == [EventKind.IN_FLIGHT, EventKind.WAIT_TIMEOUT]
        kinds.clear()
        engines.wait(LEASE)
        with pytest.raises(OutcomeUnknown):
            once.run("op", "k3", Body())
        assert kinds == [EventKind.UNKNOWN]

    def test_a_stored_failure_gives_a_finished_and_then_a_replayed_event(
        self, engines: EngineCase
    ) -> None:
        once = engines.once()
        kinds = engines.events_of(once)
        for _ in range(2):
            with pytest.raises(Exception, match="no"):
                once.run("op", "k", Body(error=ValueError("no")))
        assert kinds == [EventKind.CLAIMED, EventKind.FINISHED, EventKind.REPLAYED]

    def test_an_event_names_the_operation_and_never_the_key(self, engines: EngineCase) -> None:
        once, heard = engines.once(), list[Event]()
        once.subscribe(heard.append)
        result = once.run("op", "secret-key", Body(1), scope="t")
        once.run("op", "secret-key", Body(1), scope="t")
        assert [(n.operation, n.scope, n.fence) for n in heard] == [("op", "t", result.fence)] * 3
        assert [n.from_cache for n in heard] == [False, False, True]
        assert "secret-key" not in repr(heard)

    def test_a_subscriber_that_raises_breaks_nothing(
        self, engines: EngineCase, caplog: pytest.LogCaptureFixture
    ) -> None:
        once, heard = engines.once(), list[Event]()

        def broken(notice: Event) -> None:
            raise ZeroDivisionError

        once.subscribe(broken)
        once.subscribe(heard.append)
        assert once.run("op", "k", Body(1)).value == 1
        assert once.run("op", "k", Body(2)).value == 1
        assert [n.kind for n in heard] == [
            EventKind.CLAIMED,
            EventKind.FINISHED,
            EventKind.REPLAYED,
        ]
        assert "a subscriber failed" in caplog.text

    def test_an_unsubscribed_function_gets_no_more_events(self, engines: EngineCase) -> None:
        once, heard = engines.once(), list[Event]()
        stop = once.subscribe(heard.append)
        stop()
        once.run("op", "k", Body(1))
        assert heard == []


class ReplayCaches:
    def test_a_replay_costs_no_round_trip(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        once, body = engines.once(faulty), Body({"list": [1]})
        first = once.run("op", "k", body).value
        assert faulty.kinds() == ["Claim", "Finish"]
        first["list"].append("changed by the caller")
        assert once.run("op", "k", body).value == {"list": [1]}
        assert faulty.kinds() == ["Claim", "Finish"]

    def test_cache_0_turns_the_replay_cache_off(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        once = engines.once(faulty, cache=0)
        assert [once.run("op", "k", Body(n)).value for n in range(3)] == [0, 0, 0]
        assert faulty.kinds() == ["Claim", "Finish", "Claim", "Claim"]

    def test_i2_an_entry_never_outlives_its_record(self, engines: EngineCase) -> None:
        once = engines.once()
        body = Body("first")
        once.run("op", "k", body, keep="10s")
        engines.clock.advance(10 * SECOND - 1)
        assert once.run("op", "k", Body("second"), keep="10s").value == "first"
        engines.clock.advance(1)
        assert once.run("op", "k", Body("second"), keep="10s").value == "second"

    def test_an_entry_read_late_in_its_life_expires_with_the_record(
        self, engines: EngineCase
    ) -> None:
        engines.once().run("op", "k", Body("first"), keep="10s")
        engines.clock.advance(9 * SECOND)
        other = engines.once()
        assert other.run("op", "k", Body("never"), keep="10s").value == "first"
        engines.clock.advance(SECOND)
        assert other.run("op", "k", Body("second"), keep="10s").value == "second"

    def test_an_entry_holds_a_minute_at_most(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        once = engines.once(faulty)
        once.run("op", "k", Body("first"))
        engines.clock.advance(60 * SECOND)
        assert once.run("op", "k", Body()).value == "first"
        assert faulty.kinds() == ["Claim", "Finish", "Claim"]

    def test_i11_the_cache_is_bounded(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        once = engines.once(faulty, cache=2)
        for key in ("a", "b", "c"):
            once.run("op", key, Body(key))
        faulty.calls.clear()
        assert [once.run("op", key, Body()).value for key in ("c", "b")] == ["c", "b"]
        assert faulty.calls == []
        assert once.run("op", "a", Body()).value == "a"
        assert faulty.kinds() == ["Claim"]

    def test_unfinished_outcomes_are_never_cached(self, engines: EngineCase) -> None:
        faulty = engines.faulty()
        once = engines.once(faulty)
        engines.hold("k", keep_unknown=KEEP)
        for _ in range(3):
            with pytest.raises(InFlight):
                once.run("op", "k", Body())
        engines.wait(LEASE)
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                once.run("op", "k", Body())
        assert faulty.kinds() == ["Claim"] * 6
        engines.wait(KEEP)
        assert once.run("op", "k", Body("fresh")).value == "fresh"

    def test_i7_another_request_is_never_answered_from_the_cache(self, engines: EngineCase) -> None:
        once = engines.once()
        once.run("op", "k", Body(1), request="a")
        with pytest.raises(Mismatch):
            once.run("op", "k", Body(1), request="b")
        assert once.run("op", "k", Body(2), request="a").value == 1


class ConcurrentCallers:
    def test_i1_sixty_four_callers_of_one_key_run_it_once(self, engines: EngineCase) -> None:
        once, barrier = engines.once(cache=0), threading.Barrier(CROWD)
        body = Body("once")

        def waiting_body(attempt: Any) -> Any:
            # All others sleep on the clock by now and are woken when this attempt ends.
            engines.clock.wait_until_due(FOLLOWER_POLL_US, CROWD - 1, timeout=60)
            return body(attempt)

        def caller() -> Any:
            barrier.wait(30)
            return once.run("op", "k", waiting_body, wait="20s")

        results = [f.result() for f in [engines.start(caller) for _ in range(CROWD)]]
        assert [r.value for r in results] == ["once"] * CROWD
        assert sorted(r.replayed for r in results) == [False] + [True] * (CROWD - 1)
        assert body.runs == 1

    def test_i1_sixty_four_callers_of_their_own_keys_all_run(self, engines: EngineCase) -> None:
        once, barrier = engines.once(), threading.Barrier(CROWD)

        def caller(number: int) -> Any:
            barrier.wait(30)
            return once.run("op", f"k{number}", Body(number)).value

        futures = [engines.start(caller, number) for number in range(CROWD)]
        assert [future.result() for future in futures] == list(range(CROWD))

    def test_i1_several_engines_share_the_store(self, engines: EngineCase) -> None:
        body = HeldBody("one")
        first, second = engines.once(), engines.once()
        running = engines.start(first.run, "op", "k", body)
        body.wait_inside()
        with pytest.raises(InFlight):
            second.run("op", "k", body)
        body.go.set()
        running.result()
        assert second.run("op", "k", body).replayed
        assert body.runs == 1
