"""What a failing run prints and draws: a story with the faults that matter, and a timeline."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.chaos.histories import ID, answered
from tests.support.chaos.__main__ import main
from tests.support.chaos.chaos_history import HistoryFile, merged, write_events
from tests.support.chaos.invariant_rules import OBSERVED
from tests.support.chaos.operation_history import read_history
from tests.support.chaos.run_summary import explain
from tests.support.chaos.violation_story import LINES_MAX, stories, story


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A recorded history in which the answer was lost in a crash of the database."""
    made = answered().send(7.0, 3).reply(7.1, 3, 409, code="in-flight")
    made.fault(6.0, 6.5, "database killed", "database")
    made.fault(6.1, 6.4, "worker paused", "worker 2")
    made.add(0.5, "guarantee", level="best_effort", reason="synchronous_commit is off", by="w")
    made.record().finished()
    path = tmp_path / "history.jsonl"
    write_events(path, sorted(made.events, key=lambda event: event["at"]))
    return path


def test_a_story_tells_the_events_of_the_key_and_the_faults_that_touched_it() -> None:
    made = answered().send(7.0, 3).reply(7.1, 3, 409, code="in-flight").record().finished()
    made.fault(6.0, 6.5, "database killed", "database")
    made.fault(6.1, 6.4, "worker paused", "worker 2")
    history = read_history(sorted(made.events, key=lambda event: event["at"]))
    (violation,) = made.violations()
    told = story(violation, history)
    assert f"I4 is violated for {ID}: request 3 got 409 in-flight" in told
    assert "7.000 s  A client sends request 3 to worker 0." in told
    assert "FAULT 1 begins: database killed (database)." in told
    assert "worker paused" not in told
    assert told.endswith("At the end its record is succeeded, attempt 1, fence 1000; effects: 1.")


def test_several_violations_of_one_operation_are_one_story() -> None:
    made = answered().effect(3.0, "e-2", 1_001).send(6.0, 3).reply(6.1, 3).record().finished()
    history = read_history(sorted(made.events, key=lambda event: event["at"]))
    (told,) = stories(made.violations(), history)
    assert [line[:2] for line in told.splitlines()[:2]] == ["I1", "I2"]
    assert told.count("A client sends request 3") == 1


def test_faults_far_from_the_events_of_the_key_are_left_out_of_its_story() -> None:
    made = answered().send(90.0, 3).reply(90.1, 3, 409, code="in-flight").record().finished()
    made.fault(40.0, 41.0, "database frozen", "database")
    made.fault(95.0, 96.0, "database killed", "database")
    history = read_history(sorted(made.events, key=lambda event: event["at"]))
    told = story(made.violations()[0], history)
    assert "database frozen" not in told
    assert "database killed" in told  # what is lost later is part of the story


def test_a_long_story_is_cut_around_the_violation() -> None:
    made = answered()
    for number in range(100, 300):
        made.send(5.0 + number / 100, number)
    made.send(8.5, 900).reply(8.6, 900, 409, code="in-flight").record().finished()
    (violation,) = made.violations()
    history = read_history(sorted(made.events, key=lambda event: event["at"]))
    lines = story(violation, history).splitlines()
    assert len(lines) <= LINES_MAX + 5
    assert any("Request 900 gets 409 in-flight" in line for line in lines)
    assert any("lines left out" in line for line in lines)


def test_a_replayed_history_prints_the_seed_and_exits_with_1(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--replay={broken}"]) == 1
    printed = capsys.readouterr().out
    assert "1 violations in 1 operations (I4 1)" in printed
    assert "--seed 1" in printed
    assert "The store said of itself: best_effort: synchronous_commit is off" in printed
    assert printed.endswith(f"history: {broken}\n")


def test_a_history_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([f"--replay={tmp_path / 'missing.jsonl'}"])
    assert "there is no history" in capsys.readouterr().err


def test_a_replayed_history_can_be_printed_as_json(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--replay={broken}", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["violations by invariant"] == {"I4": 1}
    assert printed["found"][0]["id"] == ID


def test_the_timeline_is_one_file_that_shows_faults_operations_and_violations(
    broken: Path, tmp_path: Path
) -> None:
    page = tmp_path / "timeline.html"
    assert main([f"--replay={broken}", f"--html={page}", "--json"]) == 1
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert text.count('class="database"') == 1
    assert 'class="bar once violated"' in text
    assert all(f"<b>{name}</b>" in text for name in OBSERVED)


def test_violations_without_a_loss_of_the_database_are_counted_as_such(broken: Path) -> None:
    made = answered().effect(3.0, "e-2", 1_001).record().finished()
    history = read_history(made.events)
    assert explain(history, made.violations()).startswith("0 of 1 violations")


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path, "worker", start=0.0)
    file.write("begin", at=2.0, id="a")
    file.close()
    with (tmp_path / "worker.events").open("a", encoding="utf-8") as cut:
        cut.write('{"at": 3.0, "ki')
    assert merged(tmp_path, began=1.5) == [{"at": 0.5, "kind": "begin", "id": "a"}]
