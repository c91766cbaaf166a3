"""The demo's check is a real one: it fails when an operation takes effect twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from oncekey import AsyncOnce, Result
from oncekey.cli.exits import Exit
from oncekey.cli.main import main
from oncekey.demo import stage as stage_module
from oncekey.demo.play import Report
from oncekey.demo.provider.books import Books, Counts, Wanted
from oncekey.demo.scene import Answer, Got, Scene


def scene(counted: Counts, *answers: Answer) -> Scene:
    expected = tuple(answer.got for answer in answers)
    return Scene("name", "title", "story", "key", answers, expected, counted)


FIRST = Answer("first", Got.RAN, receipt="ch_1")
RETRY = Answer("retry", Got.REPLAYED, receipt="ch_1")
WANTED = Wanted("key-1", "charge", "order-1", 4_900)


def test_a_good_scene_has_no_faults() -> None:
    assert scene(Counts(1, 1), FIRST, RETRY).faults == []


def test_how_often_somebody_is_told_to_wait_does_not_matter() -> None:
    waiting = Answer("retry", Got.IN_FLIGHT)
    good = Scene("", "", "", "", (FIRST, waiting, RETRY), (Got.RAN, Got.REPLAYED), Counts())
    assert good.ok


def test_a_double_charge_in_the_books_is_a_fault(tmp_path: Path) -> None:
    books = Books(tmp_path / "provider.db")
    for key in ("key-1", "key-2"):
        wanted = Wanted(key, "charge", "order-1", 4_900)
        books.note(wanted)
        books.act(wanted)
    broken = scene(books.counts("order-1"), FIRST, RETRY)
    assert not broken.ok
    assert "the provider acted twice, not once" in broken.faults
    report = Report("sqlite:///x", "acct_1", kept=False, scenes=(broken,), seconds=0.0)
    assert not report.ok
    assert "broken in name" in report.summary


def test_no_charge_at_all_is_a_fault(tmp_path: Path) -> None:
    counts = Books(tmp_path / "provider.db").counts("order-1")
    assert "the provider acted 0 times, not once" in scene(counts, FIRST, RETRY).faults


def test_the_provider_acts_once_per_key_and_notes_every_request(tmp_path: Path) -> None:
    books = Books(tmp_path / "provider.db")
    assert [books.note(WANTED), books.note(WANTED)] == [1, 2]
    assert books.act(WANTED) == books.act(WANTED) != None  # noqa: E711
    assert books.act(Wanted("key-1", "charge", "order-1", 100)) is None
    assert books.counts("order-1") == books.totals() == Counts(asked=2, acted=1)


def test_another_answer_is_a_fault() -> None:
    other = Answer("retry", Got.REPLAYED, receipt="ch_2")
    assert "different answers: ch_1, ch_2" in scene(Counts(), FIRST, other).faults[0]


def test_an_unexpected_answer_is_a_fault() -> None:
    ran_again = Answer("retry", Got.RAN, receipt="ch_1")
    broken = Scene("", "", "", "", (FIRST, ran_again), (Got.RAN, Got.REPLAYED), Counts())
    assert "promised ran, replayed" in broken.faults[0]


def test_a_run_without_scenes_is_not_a_success() -> None:
    assert not Report("sqlite:///x", "acct_1", kept=False, scenes=(), seconds=0.0).ok


class Forgetful(AsyncOnce):
    """A library that does not deduplicate: every call has a key of its own."""

    _calls = itertools.count()

    async def run(self, operation: str, key: Any, body: Any, **options: Any) -> Result[Any]:
        return await super().run(operation, f"{key}-{next(self._calls)}", body, **options)


def test_a_broken_library_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage_module, "open_keys", Forgetful)
    arguments = ["demo", "--play", "--only", "declined"]
    assert main([*arguments, "--json"]) == Exit.FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["scenarios"][0]["counted"]["acted"] == 2
    assert main(arguments) == Exit.FAILED
    shown = capsys.readouterr().out
    assert "BROKEN: the provider acted twice, not once" in shown
    assert "every operation ran once" not in shown
