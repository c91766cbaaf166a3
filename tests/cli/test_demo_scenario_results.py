"""The demo's judgement can fail: it does when an operation takes effect twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from oncekey import AsyncOnce, Result
from oncekey.cli.main import main
from oncekey.cli.output import ExitCode
from oncekey.demo import environment as environment_module
from oncekey.demo.provider.ledger import Counts, ProviderLedger, Wanted
from oncekey.demo.scenario_result import CallerResult, ResponseKind, ScenarioResult
from oncekey.demo.scenario_runner import Report


def result(counted: Counts, *answers: CallerResult) -> ScenarioResult:
    expected = tuple(answer.got for answer in answers)
    return ScenarioResult("name", "title", "story", "key", answers, expected, counted)


FIRST = CallerResult("first", ResponseKind.RAN, receipt="ch_1")
RETRY = CallerResult("retry", ResponseKind.REPLAYED, receipt="ch_1")
WANTED = Wanted("key-1", "charge", "order-1", 4_900)


def test_a_good_result_has_no_faults() -> None:
    assert result(Counts(1, 1), FIRST, RETRY).faults == []


def test_the_number_of_in_flight_responses_does_not_matter() -> None:
    waiting = CallerResult("retry", ResponseKind.IN_FLIGHT)
    good = ScenarioResult(
        "", "", "", "", (FIRST, waiting, RETRY), (ResponseKind.RAN, ResponseKind.REPLAYED), Counts()
    )
    assert good.ok


def test_a_double_charge_in_the_ledger_is_a_fault(tmp_path: Path) -> None:
    ledger = ProviderLedger(tmp_path / "provider.db")
    for key in ("key-1", "key-2"):
        wanted = Wanted(key, "charge", "order-1", 4_900)
        ledger.note(wanted)
        ledger.act(wanted)
    broken = result(ledger.counts("order-1"), FIRST, RETRY)
    assert not broken.ok
    assert "the provider acted twice, not once" in broken.faults
    report = Report("sqlite:///x", "acct_1", kept=False, results=(broken,), seconds=0.0)
    assert not report.ok
    assert "broken in name" in report.summary


def test_no_charge_at_all_is_a_fault(tmp_path: Path) -> None:
    counts = ProviderLedger(tmp_path / "provider.db").counts("order-1")
    assert "the provider acted 0 times, not once" in result(counts, FIRST, RETRY).faults


def test_the_provider_acts_once_per_key_and_notes_every_request(tmp_path: Path) -> None:
    ledger = ProviderLedger(tmp_path / "provider.db")
    assert [ledger.note(WANTED), ledger.note(WANTED)] == [1, 2]
    assert ledger.act(WANTED) == ledger.act(WANTED) != None  # noqa: E711
    assert ledger.act(Wanted("key-1", "charge", "order-1", 100)) is None
    assert ledger.counts("order-1") == Counts(asked=2, acted=1)


def test_a_different_receipt_is_a_fault() -> None:
    other = CallerResult("retry", ResponseKind.REPLAYED, receipt="ch_2")
    assert "different answers: ch_1, ch_2" in result(Counts(), FIRST, other).faults[0]


def test_an_unexpected_kind_of_response_is_a_fault() -> None:
    ran_again = CallerResult("retry", ResponseKind.RAN, receipt="ch_1")
    broken = ScenarioResult(
        "", "", "", "", (FIRST, ran_again), (ResponseKind.RAN, ResponseKind.REPLAYED), Counts()
    )
    assert "promised ran, replayed" in broken.faults[0]


def test_a_report_without_results_is_not_a_success() -> None:
    assert not Report("sqlite:///x", "acct_1", kept=False, results=(), seconds=0.0).ok


class Forgetful(AsyncOnce):
    """A broken library that does not deduplicate: it gives every call a new key."""

    _calls = itertools.count()

    async def run(self, operation: str, key: Any, body: Any, **options: Any) -> Result[Any]:
        return await super().run(operation, f"{key}-{next(self._calls)}", body, **options)


def test_a_broken_library_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment_module, "open_keys", Forgetful)
    arguments = ["demo", "--play", "--only", "at-once"]
    assert main([*arguments, "--compare", "--json"]) == ExitCode.FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["scenarios"][0]["counted"]["acted"] == 20
    assert report["charged_twice"] == {"without": 1, "with": 1}
    assert main(arguments) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "BROKEN: the provider acted 20 times, not once" in shown
    assert "every operation ran once" not in shown
