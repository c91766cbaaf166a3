"""The servers of these tests are in the same process: nothing of theirs lags or comes back."""

from __future__ import annotations

import pytest

from oncekey.verify.probes import lost_responses, outcome_evidence, unusual_responses


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_evidence, "FAILURE_SECONDS", 0.2)
    monkeypatch.setattr(outcome_evidence, "COUNTER_LAG_SECONDS", 0.1)
    monkeypatch.setattr(outcome_evidence, "LATE_EFFECT_SECONDS", 0.0)
    monkeypatch.setattr(outcome_evidence, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(lost_responses, "COMES_BACK_MARGIN_SECONDS", 0.02)
    monkeypatch.setattr(unusual_responses, "STORE_SECONDS", 0.2)
