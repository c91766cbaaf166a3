"""Engine tests of what operators do: list, find, resolve and release keys, and read the stats."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.commands import Done
from oncekey.core.errors import (
    ConfigurationError,
    KeyChanged,
    OperationFailed,
    OutcomeUnknown,
    Terminal,
)
from oncekey.core.events import EventKind
from oncekey.core.origin import Origin
from oncekey.engine.keys.administration import HttpAnswer
from oncekey.testing.contract.engine_case import Body, Engine, EngineCase
from oncekey.testing.contract.store_case import LEASE
from oncekey.testing.sync_facade import SyncOnce

CHARGES = Origin("http", "POST /charges", "create_charge")


def ask(once: Engine, method: str, *args: Any, **options: Any) -> Any:
    """Call one of the operators' methods of a sync or an async engine."""
    if isinstance(once, SyncOnce):
        return once.administer(method, *args, **options)
    return getattr(once, method)(*args, **options)


def unknown(engines: EngineCase, key: str = "k", **options: Any) -> Any:
    """The status of a key whose owner died."""
    engines.dead_owner(key, **{"label": "op", **options})
    return engines.once().get("op", key)


class OperatorReports:
    def test_a_listing_shows_states_origins_and_notes(self, engines: EngineCase) -> None:
        once = engines.once(raw_keys=True)
        once.run("charge", "k1", Body(1), scope="acct", origin=CHARGES)
        unknown(engines, "k2")
        listing = ask(once, "list")
        shown = {key.operation: key for key in listing.keys}
        assert (shown["op"].state, shown["charge"].state) == ("unknown", "succeeded")
        charge = shown["charge"]
        assert (charge.route, charge.name, charge.surface) == (*CHARGES[1:], "http")
        assert (charge.key, charge.scope) == ("k1", "acct")
        assert [key.tag for key in ask(once, "list", state="unknown").keys] == [shown["op"].tag]
        assert listing.next is None

    def test_pages_go_on_where_the_last_one_ended(self, engines: EngineCase) -> None:
        once = engines.once()
        for n in range(5):
            once.run("op", f"k{n}", Body(n))
        first = ask(once, "list", limit=3)
        second = ask(once, "list", limit=3, after=first.next)
        tags = [key.tag for key in (*first.keys, *second.keys)]
        assert (len(tags), len(set(tags)), second.next) == (5, 5, None)

    def test_wrong_arguments_are_refused(self, engines: EngineCase) -> None:
        once = engines.once()
        for options in ({"state": "done"}, {"tag": "xyz"}, {"limit": 0}, {"after": "yesterday"}):
            with pytest.raises(ConfigurationError):
                ask(once, "list", **options)

    def test_find_shows_the_key_that_a_log_calls_by_its_tag(self, engines: EngineCase) -> None:
        once = engines.once()
        once.run("op", "k", Body({"id": 7}))
        status = once.get("op", "k")
        assert status is not None
        assert ask(once, "find", status.tag) == status
        assert ask(once, "find", "0" * 12) is None
        with pytest.raises(ConfigurationError):
            ask(once, "find", "")

    def test_the_stats_count_what_is_pending_and_unknown(self, engines: EngineCase) -> None:
        once = engines.once()
        unknown(engines, "dead")
        engines.hold("held", label="op")
        once.run("op", "done", Body(1))
        stats = ask(once, "stats")
        assert (stats.pending, stats.unknown, stats.complete) == (1, 1, True)
        assert stats.claims_per_second > 0


class OperatorDecisionsOfKeys:
    def test_a_resolved_value_is_replayed_and_says_who_decided(self, engines: EngineCase) -> None:
        once, body = engines.once(), Body("never")
        status = unknown(engines)
        decided = ask(once, "resolve", status, succeeded={"id": 1}, by="ana", why="saw the charge")
        assert (decided.state, decided.value) == ("succeeded", {"id": 1})
        assert "ana succeeded: saw the charge" in decided.note
        assert once.run("op", "k", body).value == {"id": 1}
        assert body.runs == 0

    def test_a_key_resolved_as_failed_raises_that_failure(self, engines: EngineCase) -> None:
        once = engines.once()
        ask(once, "resolve", unknown(engines), failed="no such card", by="ana", why="asked them")
        with pytest.raises(OperationFailed, match="no such card"):
            once.run("op", "k", Body(1))

    def test_a_freed_key_runs_again_and_keeps_its_note(self, engines: EngineCase) -> None:
        once, body = engines.once(), Body(2)
        ask(once, "resolve", unknown(engines), free=True, by="ana", why="it never left us")
        assert once.run("op", "k", body).value == 2
        status = once.get("op", "k")
        assert status is not None
        assert "ana freed: it never left us" in status.note

    def test_i2_of_two_operators_the_first_one_decides(self, engines: EngineCase) -> None:
        once, status = engines.once(), unknown(engines)
        ask(once, "resolve", status, succeeded=1, by="ana", why="it happened")
        with pytest.raises(KeyChanged, match="succeeded now"):
            ask(once, "resolve", status, free=True, by="bob", why="it did not")
        assert once.run("op", "k", Body(3)).value == 1

    def test_a_late_owner_and_an_operator_do_not_both_decide(self, engines: EngineCase) -> None:
        held = engines.hold("k", label="op")
        engines.wait(LEASE)
        once = engines.once()
        status = once.get("op", "k")
        engines.expect(Done, held.finish(body=b"\x01\x01\x04json5"))
        with pytest.raises(KeyChanged):
            ask(once, "resolve", status, free=True, by="ana", why="it looked dead")
        assert once.run("op", "k", Body(3)).value == 5

    def test_only_unknown_keys_are_resolved(self, engines: EngineCase) -> None:
        once = engines.once()
        once.run("op", "done", Body(1))
        engines.hold("held", label="op")
        for key in ("done", "held"):
            with pytest.raises(KeyChanged):
                ask(once, "resolve", once.get("op", key), free=True, by="ana", why="just so")
            with pytest.raises(KeyChanged):
                ask(once, "release", once.get("op", key), by="ana", why="just so")

    def test_a_decision_names_who_and_why_and_one_outcome(self, engines: EngineCase) -> None:
        once, status = engines.once(), unknown(engines)
        wrong: list[dict[str, Any]] = [
            {"by": "ana", "why": ""},
            {"by": "", "why": "so"},
            {"by": "ana", "why": "two\nlines"},
            {"by": "ana", "why": "w" * 1_000},
            {"by": "ana", "why": "so", "failed": "x"},
        ]
        for options in wrong:
            with pytest.raises(ConfigurationError):
                ask(once, "resolve", status, free=True, **options)
        with pytest.raises(ConfigurationError):
            ask(once, "resolve", status, by="ana", why="nothing given")
        with pytest.raises(OutcomeUnknown):
            once.run("op", "k", Body(1))

    def test_a_failed_key_is_released_and_runs_again(self, engines: EngineCase) -> None:
        once, other, body = engines.once(), engines.once(cache=0), Body("mended")
        with pytest.raises(Terminal):
            once.run("op", "k", Body(error=Terminal("broken")))
        failed = once.get("op", "k")
        assert ask(once, "release", failed, by="ana", why="the bug is mended") is None
        assert other.run("op", "k", body).value == "mended"
        assert once.run("op", "k", Body("cached")).value == "mended"
        now = other.get("op", "k")
        (past,) = ask(once, "past", now)
        assert (past.state, past.error) == ("failed", "Terminal: broken")

    def test_http_keys_are_answered_with_a_response(self, engines: EngineCase) -> None:
        once = engines.once()
        status = unknown(engines, "k", label="op\thttp\tPOST /charges\tcreate")
        with pytest.raises(ConfigurationError, match="HttpAnswer"):
            ask(once, "resolve", status, succeeded={"id": 1}, by="ana", why="saw it")
        answer = HttpAnswer(201, '{"id": 1}')
        decided = ask(once, "resolve", status, succeeded=answer, by="ana", why="saw it")
        assert (decided.http_status, decided.value["body"]) == (201, {"id": 1})

    def test_subscribers_hear_of_a_decision(self, engines: EngineCase) -> None:
        once = engines.once()
        kinds = engines.events_of(once)
        ask(once, "resolve", unknown(engines), failed="no", by="ana", why="asked")
        assert kinds == [EventKind.RESOLVED]
