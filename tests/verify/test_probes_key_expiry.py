"""The probe of expiry; it does not wait here, and servers forget by the number of requests."""

from __future__ import annotations

import time

import pytest
from tests.verify.keyed_server import KeyedServer, Received, Reply
from tests.verify.probe_checks import assert_fault, verdict_on

from oncekey.verify.probes import key_expiry
from oncekey.verify.probes.key_expiry import AFTERWARDS_MARGIN_SECONDS, Expiry
from oncekey.verify.verdict import Fault, Status

PROBE = Expiry()
KEEP_SECONDS = 60.0  # longer than a busy machine takes for the four requests


class Forgetful(KeyedServer):
    """Forgets a key before its request with this number, or refuses it."""

    forgets_at = 99
    refuses_at = 99

    async def respond(self, received: Received) -> Reply:
        number = self.arrivals[received.key].number
        if number == self.refuses_at:
            return Reply(410, b"expired")
        if number == self.forgets_at:
            self.records.pop(received.key, None)
        return await super().respond(received)


class ForgetsEarly(Forgetful):
    forgets_at = 3


class ForgetsInTime(Forgetful):
    forgets_at = 4


class RefusesInTime(Forgetful):
    refuses_at = 4


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the moments until which the probe wanted to wait."""
    seen: list[float] = []

    async def note(moment: float) -> None:
        seen.append(moment)

    monkeypatch.setattr(key_expiry, "_sleep_until", note)
    return seen


@pytest.mark.parametrize(
    ("server_type", "afterwards"),
    [
        (ForgetsInTime, "runs again, as a new operation"),
        (RefusesInTime, "gets 410"),
        (Forgetful, "still gets the outcome"),
    ],
)
def test_it_holds_within_the_time_and_says_what_comes_after_it(
    server_type: type[KeyedServer], afterwards: str, moments: list[float]
) -> None:
    began = time.monotonic()
    verdict = verdict_on(server_type, PROBE, keep_seconds=KEEP_SECONDS)
    took = time.monotonic() - began
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.summary.endswith(afterwards)
    assert verdict.n == 2
    half, most, after = (moment - began for moment in moments)
    assert 0.5 * KEEP_SECONDS <= half <= 0.5 * KEEP_SECONDS + took
    assert most - half == pytest.approx(0.3 * KEEP_SECONDS)
    assert after - half >= 0.5 * KEEP_SECONDS + AFTERWARDS_MARGIN_SECONDS


def test_a_key_that_is_forgotten_early_is_named(moments: list[float]) -> None:
    verdict = verdict_on(ForgetsEarly, PROBE, keep_seconds=KEEP_SECONDS)
    assert_fault(verdict, Fault.EXPIRED_EARLY)


def test_a_retry_that_was_late_accuses_nobody(moments: list[float]) -> None:
    verdict = verdict_on(ForgetsEarly, PROBE, keep_seconds=0.0)
    assert verdict.status is Status.NOT_OBSERVABLE


@pytest.mark.parametrize("keep", [None, 3600.0])
def test_a_time_that_is_unknown_or_too_long_is_not_waited_for(keep: float | None) -> None:
    verdict = verdict_on(KeyedServer, PROBE, keep_seconds=keep)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--keep 5s" in verdict.advice
