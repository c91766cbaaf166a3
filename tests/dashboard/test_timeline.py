"""What the dashboard draws: the timeline of a key, and the charts of the overview."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oncekey.cli.key_report import key_rows
from oncekey.core.codec import JSON
from oncekey.core.commands import Claim, Seen
from oncekey.core.events import Event, EventKind
from oncekey.core.state_machine import decide
from oncekey.core.step_format import StepStatus
from oncekey.dashboard import charts, display
from oncekey.dashboard.live_rates import LiveRates, RateCurve
from oncekey.dashboard.overview_page import stuck_keys
from oncekey.dashboard.timeline import Row, timeline_of
from oncekey.engine.keys.key_list import summary_of
from oncekey.engine.keys.key_status import KeyStatus, status_of, time_of

START = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def key(**fields: object) -> KeyStatus:
    """A key that was claimed at START and succeeded after a second."""
    made = KeyStatus(
        state="succeeded",
        operation="charge",
        scope="",
        tag="0" * 12,
        attempt=1,
        fence=int(START.timestamp() * 1_000_000),
        created_at=START,
        lease_until=after(30),
        finished_at=after(1),
        expires_at=after(90_000),
        expired=False,
        value=None,
        error=None,
        note="",
        steps=(),
        id="0" * 32,
        seen_at=after(3_600),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def kinds(row: Row) -> list[str]:
    return [bar.kind for bar in row.bars]


def test_a_finished_key_is_one_bar_and_its_end() -> None:
    attempt, end = timeline_of(key()).rows
    assert kinds(attempt) == ["held"]
    assert attempt.text.endswith("it took 1 s")
    assert (end.title, end.mark) == ("Succeeded", "end-succeeded")
    assert end.at == attempt.bars[0].x + attempt.bars[0].width


def test_an_unknown_key_is_silent_after_its_lease() -> None:
    (attempt,) = timeline_of(key(state="unknown", finished_at=None)).rows
    held, silent = attempt.bars
    assert (held.kind, silent.kind) == ("held", "silent")
    assert silent.x == pytest.approx(held.x + held.width)


def test_a_pending_key_shows_what_is_left_of_its_lease() -> None:
    (attempt,) = timeline_of(key(state="pending", finished_at=None, seen_at=after(10))).rows
    assert kinds(attempt) == ["held", "lease"]
    assert "20 s more" in attempt.text


def test_an_owner_is_silent_from_the_very_end_of_its_lease_on() -> None:
    """On etcd the lease of a claim whose session has ended is shown to end now, if the clock of
    the host that looks is behind; however long that goes on, nobody holds the key."""
    claimed = decide(None, Claim(b"i" * 16, b"o" * 16, b"\x01", 30, 60, 60, True), 1_000).write
    assert claimed is not None
    end = claimed.lease_until
    for now, silent in ((end - 1, False), (end, True)):
        status = status_of(Seen(claimed, now), JSON)
        assert status is not None
        assert (display.meaning_of(status) == display.SILENT) is silent
        assert ("fell silent" in key_rows(status, bodies=False)["state"]) is silent
        assert bool(stuck_keys([summary_of(claimed, now)], time_of(now), after=300)) is silent


def test_earlier_attempts_come_before_the_present_one() -> None:
    status = key(attempt=3, fence=int(after(60).timestamp() * 1_000_000), finished_at=after(61))
    earlier, present, _ = timeline_of(status).rows
    assert earlier.title == "Attempts 1 to 2"
    assert kinds(earlier) == ["earlier"]
    assert earlier.bars[0].x + earlier.bars[0].width == pytest.approx(present.bars[0].x)


def test_steps_are_drawn_in_the_order_of_their_ends_and_an_open_one_stays_open() -> None:
    steps = (
        StepStatus("begun", False, after(0.7), intent="ok1-x"),
        StepStatus("second", True, after(0.6)),
        StepStatus("first", True, after(0.2)),
    )
    _, first, second, begun = timeline_of(key(state="unknown", finished_at=None, steps=steps)).rows
    assert [row.title for row in (first, second, begun)] == [
        "Step first", "Step second", "Step begun",
    ]  # fmt: skip
    assert second.bars[0].x == pytest.approx(first.at)
    assert kinds(begun) == ["open"]
    assert begun.mark == "begun"


def test_decisions_are_placed_by_the_time_in_their_note() -> None:
    note = "2026-03-01T03:30:00Z ada freed: x\nan old note without a time\n"
    rows = timeline_of(key(note=note, finished_at=after(1_900))).rows
    placed, unplaced = (row for row in rows if row.title == "Decision")
    assert placed.mark == "decision"
    assert 0 < placed.at < rows[-1].at
    assert unplaced.mark == ""


def test_a_key_that_was_decided_by_others_was_not_held_to_its_end() -> None:
    """Deciding a key ends its lease, so when its owner fell silent is not known any more."""
    note = "2026-03-01T03:30:00Z ada succeeded: x"
    decided = key(note=note, finished_at=after(1_800), lease_until=after(1_800))
    attempt = timeline_of(decided).rows[0]
    assert kinds(attempt) == ["silent"]
    assert attempt.text.endswith("decided 30 min later, not by its owner")
    again = timeline_of(replace(decided, note=note + "\n", attempt=2)).rows[1]
    assert kinds(again) == ["held"], "the decision was about an earlier attempt"


def test_a_freed_key_ends_where_it_was_freed() -> None:
    (attempt,) = timeline_of(key(state="freed", finished_at=None, lease_until=after(5))).rows
    assert kinds(attempt) == ["held"]
    assert attempt.text.endswith("it took 5 s")


def test_times_that_are_all_the_same_can_be_drawn() -> None:
    drawn = timeline_of(key(finished_at=START, lease_until=START, seen_at=START))
    assert all(bar.width > 0 for row in drawn.rows for bar in row.bars)
    assert drawn.intervals == ()


def test_long_waits_do_not_hide_what_happened_before() -> None:
    status = key(state="unknown", finished_at=None, seen_at=after(10 * 86_400))
    held, silent = timeline_of(status).rows[0].bars
    assert held.width > silent.width / 3


# --- charts ---------------------------------------------------------------------------------------


def test_ages_are_counted_by_column_and_old_ones_are_marked() -> None:
    columns = charts.age_histogram([0.1, 0.9, 2, 400, 9_000], 300)
    assert [column.keys for column in columns] == [2, 1, 0, 0, 1, 1]
    assert [column.is_old for column in columns] == [False] * 4 + [True] * 2
    assert all(column.height >= 3 for column in columns if column.keys)
    assert [column.keys for column in charts.age_histogram([], 300)] == [0] * 6


def test_bars_compare_rows_with_their_projection() -> None:
    now, projected = charts.size_bars(50, 200)
    assert (now.width, projected.width) == (25, 100)
    assert [bar.width for bar in charts.size_bars(0, 0)] == [0, 0]


def test_the_curve_of_rates_keeps_its_last_points() -> None:
    curve = RateCurve()
    assert charts.rate_curve(curve.points) is None
    for second in range(200):
        curve.add(second, second % 5)
        curve.add(second, 99)  # a second reader of the same moment
    drawn = charts.rate_curve(curve.points)
    assert drawn is not None
    assert len(drawn.points.split()) == 120
    assert drawn.most == 4


def test_the_dedup_rate_is_of_the_last_minute() -> None:
    now = [100.0]
    rates = LiveRates(lambda: now[0])
    assert rates.last_minute().share is None
    for kind in (EventKind.CLAIMED, EventKind.FINISHED, EventKind.REPLAYED, EventKind.IN_FLIGHT):
        rates(Event(kind, "charge", "", "t"))
    assert rates.last_minute() == (1, 2)
    now[0] += 59
    rates(Event(EventKind.TAKEOVER, "charge", "", "t"))
    assert rates.last_minute() == (2, 2)
    now[0] += 1
    assert rates.last_minute() == (1, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 ms"), (0.25, "250 ms"), (4.2, "4.2 s"), (90, "1.5 min"), (864_000, "10 d")],
)
def test_durations_are_written_in_their_largest_unit(seconds: float, text: str) -> None:
    assert display.span(seconds) == text
