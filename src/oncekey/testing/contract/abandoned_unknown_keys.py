"""Tests of abandoned operations whose outcome is unknown and that `recover` is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncekey.core.abandoned import BACKOFF_FIRST_US
from oncekey.core.commands import Command, Done, Resolve, SaveStep
from oncekey.core.errors import InvalidKey
from oncekey.core.identity import child_uuid
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.core.step_format import intent_facts, pack_step
from oncekey.testing.contract.abandoned_operations import ORDER, Ship, abandoned, outcomes
from oncekey.testing.contract.engine_case import Engine, EngineCase
from oncekey.testing.contract.store_case import (
    LEASE,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
)
from oncekey.testing.faulty_store import Fault


def hold_decisions(number: int, commands: Sequence[Command]) -> Fault | None:
    return Fault.HOLD_BEFORE if any(isinstance(c, Resolve) for c in commands) else None


class AbandonedUnknownKeys:
    def asked(
        self, engines: EngineCase, answer: Any, **options: Any
    ) -> tuple[Engine, list[UnknownKey]]:
        asked: list[UnknownKey] = []

        def recover(unknown: UnknownKey) -> Any:
            asked.append(unknown)
            return answer

        once = engines.once()
        self.ship = Ship()
        once.operation("op", recover=recover, **options)(self.ship)
        return once, asked

    def test_i10_an_unknown_key_is_decided_without_its_caller(self, engines: EngineCase) -> None:
        abandoned(engines, retry_safe=False, steps=("reserve",))
        once, asked = self.asked(engines, Recovery.succeeded("it was sent"))
        assert outcomes(once) == ["succeeded"]
        (unknown,) = asked
        assert (unknown.key, unknown.request) == ("k", ORDER)
        assert unknown.child_key("ship") == engines.identity_child("k", "ship")
        assert unknown.child_uuid("ship") == child_uuid("k", "ship", operation="op")
        assert [(step.name, step.value) for step in unknown.steps] == [
            ("reserve", "reserve by the dead")
        ]
        record = engines.record_of("k")
        assert (record.state, record.note) == (SUCCEEDED, "recover: it happened")
        assert self.ship.runs == []

    def test_an_unknown_key_that_recover_frees_is_run_at_once(self, engines: EngineCase) -> None:
        abandoned(engines, retry_safe=False)
        once, _ = self.asked(engines, Recovery.free())
        assert outcomes(once) == ["succeeded"]
        assert self.ship.runs == [("k", ORDER)]

    def test_i1_a_key_is_not_freed_if_its_silent_owner_came_back_while_recover_was_asked(
        self, engines: EngineCase
    ) -> None:
        """Nothing had happened when `recover` looked; then the owner renewed, acted, and died."""
        held = abandoned(engines, retry_safe=False)
        faulty = engines.faulty(hold_decisions)
        once, ship = engines.once(faulty), Ship()
        once.operation("op", recover=lambda unknown: Recovery.free(), recover_grace="0s")(ship)
        running = engines.start(outcomes, once)
        faulty.wait_held()
        engines.expect(Done, held.renew())
        engines.wait(LEASE)
        faulty.release()
        assert running.result() == ["elsewhere"]
        assert ship.runs == []
        assert engines.record_of("k").state in (UNKNOWN, PENDING)

    def test_i11_recover_that_returns_none_is_asked_again_with_backoff_and_a_limit(
        self, engines: EngineCase
    ) -> None:
        abandoned(engines, retry_safe=False)
        once, asked = self.asked(engines, None, tries=3)
        heard = []
        for _ in range(40):
            heard += outcomes(once)
            engines.wait(SECOND // 4)
        assert heard == ["unknown", "unknown", "unknown", "left"]
        assert len(asked) == 3
        assert engines.record_of("k").state in (UNKNOWN, PENDING)

    def test_recover_with_decides_keys_of_operations_that_run_elsewhere(
        self, engines: EngineCase
    ) -> None:
        held = engines.hold("k", label="op")
        uuid = child_uuid("k", "ship", operation="op")
        for name, facts in (
            ("pay", {"key": "ok1-sent"}),  # as older releases stored it
            ("ship", intent_facts("ok1-shipped", uuid)),
        ):
            save = SaveStep(held.id, held.owner, held.fence, name, False, pack_step(facts))
            engines.expect(Done, save)
        engines.wait(LEASE)
        asked: list[str] = []

        def recover(unknown: UnknownKey) -> Recovery:
            asked.append(unknown.child_key("pay"))
            with pytest.raises(InvalidKey, match="the key itself is not stored"):
                unknown.child_key("never begun")
            with pytest.raises(InvalidKey, match="the key itself is not stored"):
                unknown.child_uuid("pay")
            assert unknown.child_uuid("ship") == uuid
            return Recovery.free()

        once = engines.once()
        once.recover_with("op", recover)
        assert outcomes(once) == ["freed"]
        assert asked == ["ok1-sent"]

    def test_a_recover_that_raises_is_asked_again_later(self, engines: EngineCase) -> None:
        abandoned(engines, retry_safe=False)
        once = engines.once()

        def recover(unknown: UnknownKey) -> Any:
            raise ConnectionError("the bank is down")

        once.recover_with("op", recover)
        assert outcomes(once) == ["error"]
        assert outcomes(once) == []
        engines.wait(BACKOFF_FIRST_US)
        assert outcomes(once) == ["error"]
