"""Engine tests of callers that wait for the attempt that holds their key."""

from __future__ import annotations

import pytest

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Done
from oncekey.core.errors import (
    WaitTimeout,
)
from oncekey.engine.batches.duplicates import FOLLOWER_POLL_US
from oncekey.testing.contract.engine_case import Body, EngineCase, HeldBody
from oncekey.testing.contract.store_case import (
    LEASE,
    SECOND,
    SUCCEEDED,
)

POLL_MAX = 250_000


class WaitingCallers:
    def test_a_duplicate_is_woken_when_the_running_attempt_ends(self, engines: EngineCase) -> None:
        once, body = engines.once(), HeldBody("answer")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        waiting = engines.start(once.run, "op", "k", Body("never"), wait="20s")
        engines.clock.wait_until_due(FOLLOWER_POLL_US)
        before = engines.clock.now()
        body.go.set()
        assert (waiting.result().value, waiting.result().replayed) == ("answer", True)
        assert running.result().replayed is False
        assert engines.clock.now() == before  # it was woken, it did not time out

    def test_a_duplicate_in_another_process_polls(self, engines: EngineCase) -> None:
        held = engines.hold("k")
        waiting = engines.start(engines.once().run, "op", "k", Body("never"), wait="20s")
        for _ in range(8):
            engines.clock.wait_until_due(POLL_MAX)
            engines.clock.advance(POLL_MAX)
        engines.clock.wait_until_due(POLL_MAX)
        engines.expect(Done, held.finish(SUCCEEDED, pack_value(JSON, "theirs")))
        engines.clock.advance(POLL_MAX)
        assert waiting.result().value == "theirs"

    def test_a_waiter_runs_it_where_the_first_attempt_gave_the_key_back(
        self, engines: EngineCase
    ) -> None:
        once, body = engines.once(), HeldBody(error=ValueError("flaky"))
        running = engines.start(once.run, "op", "k", body, retry_safe=True)
        body.wait_inside()
        second = Body("second")
        waiting = engines.start(once.run, "op", "k", second, wait="20s", retry_safe=True)
        engines.clock.wait_until_due(FOLLOWER_POLL_US)
        body.go.set()
        with pytest.raises(ValueError, match="flaky"):
            running.result()
        assert (waiting.result().value, second.runs) == ("second", 1)

    def test_a_waiter_gets_wait_timeout_when_its_wait_is_over(self, engines: EngineCase) -> None:
        once, body = engines.once(), HeldBody("answer")
        running = engines.start(once.run, "op", "k", body)
        body.wait_inside()
        waiting = engines.start(once.run, "op", "k", Body(), wait="5s")
        engines.clock.wait_until_due(FOLLOWER_POLL_US)
        engines.clock.advance(5 * SECOND)
        with pytest.raises(WaitTimeout) as caught:
            waiting.result()
        assert caught.value.retry_after == LEASE / SECOND - 5
        body.go.set()
        assert running.result().value == "answer"

    def test_a_waiter_takes_over_when_the_lease_ends(self, engines: EngineCase) -> None:
        engines.hold("k", retry_safe=True)
        body = Body("mine")
        once = engines.once()
        waiting = engines.start(once.run, "op", "k", body, wait="60s", retry_safe=True)
        engines.clock.wait_until_due(POLL_MAX)
        engines.clock.advance(LEASE)
        assert (waiting.result().value, body.numbers) == ("mine", [2])
