"""The demo's check is a real one: it fails when an operation takes effect twice."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from oncekey import Once, Result
from oncekey.cli.commands import demo as demo_command
from oncekey.cli.demo import stage as stage_module
from oncekey.cli.demo.play import Report, play
from oncekey.cli.demo.provider import Provider
from oncekey.cli.demo.scenarios import retry_after_success
from oncekey.cli.demo.scene import Answer, Counts, Got, Scene
from oncekey.cli.exits import Exit
from oncekey.cli.main import main


def scene(counted: Counts, *answers: Answer) -> Scene:
    expected = tuple(answer.got for answer in answers)
    return Scene("1", "title", "story", "order-1", answers, expected, counted)


FIRST = Answer("first", Got.RAN, receipt="ch_1")
RETRY = Answer("retry", Got.REPLAYED, receipt="ch_1")


def test_a_good_scene_has_no_faults() -> None:
    assert scene(Counts(1, 1), FIRST, RETRY).faults == []


def test_a_double_charge_in_the_books_is_a_fault(tmp_path: Path) -> None:
    provider = Provider(tmp_path / "provider.db")
    provider.charge("order-1", 4_900)
    provider.charge("order-1", 4_900)
    broken = scene(provider.counts("order-1"), FIRST, RETRY)
    assert not broken.ok
    assert "it took effect twice, not once" in broken.faults
    report = Report(tmp_path, kept=False, scenes=(broken,), seconds=0.0)
    assert not report.ok
    assert "broken in 1" in report.summary


def test_no_charge_at_all_is_a_fault(tmp_path: Path) -> None:
    counts = Provider(tmp_path / "provider.db").counts("order-1")
    assert "it took effect 0 times, not once" in scene(counts, FIRST, RETRY).faults


def test_the_provider_acts_once_per_key_and_logs_every_request(tmp_path: Path) -> None:
    provider = Provider(tmp_path / "provider.db")
    first = provider.charge("order-1", 4_900, idempotency_key="k")
    assert provider.charge("order-1", 4_900, idempotency_key="k") == first
    assert provider.find("k") == first
    assert provider.counts("order-1") == Counts(asked=2, acted=1)


def test_another_answer_is_a_fault() -> None:
    other = Answer("retry", Got.REPLAYED, receipt="ch_2")
    assert "different answers: ch_1, ch_2" in scene(Counts(), FIRST, other).faults[0]


def test_an_unexpected_answer_is_a_fault() -> None:
    ran_again = Answer("retry", Got.RAN, receipt="ch_1")
    broken = Scene("1", "", "", "", (FIRST, ran_again), (Got.RAN, Got.REPLAYED), Counts())
    assert "promised ran, replayed" in broken.faults[0]


def test_a_run_without_scenes_is_not_a_success(tmp_path: Path) -> None:
    assert not Report(tmp_path, kept=False, scenes=(), seconds=0.0).ok


class Forgetful(Once):
    """A library that does not deduplicate: every call has a key of its own."""

    _calls = itertools.count()

    def run(self, operation: str, key: Any, body: Any, **options: Any) -> Result[Any]:
        return super().run(operation, f"{key}-{next(self._calls)}", body, **options)


def test_a_broken_library_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        stage_module, "open_once", lambda folder: Forgetful(stage_module.store_url(folder))
    )
    monkeypatch.setattr(
        demo_command, "play", functools.partial(play, scenarios=(retry_after_success,))
    )
    assert main(["demo", "--json"]) == Exit.FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["scenarios"][0]["counted"]["acted"] == 3
    assert main(["demo"]) == Exit.FAILED
    shown = capsys.readouterr().out
    assert "BROKEN: it took effect 3 times, not once" in shown
    assert "every operation ran once" not in shown
