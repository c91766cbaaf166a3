"""A tally hands events over many at a time, and loses none."""

from __future__ import annotations

import os
import threading
import warnings

import pytest

from oncekey.core.events import Event, EventKind
from oncekey.metrics import tally as tallies
from oncekey.metrics.tally import TALLY_MAX, Sums, Tally, sums_of

CLAIMED = Event(EventKind.CLAIMED, "charge", "acct_1", "5f2d9c01aa34", elapsed_us=2_000)
FINISHED = CLAIMED._replace(kind=EventKind.FINISHED, body_us=30_000, finish_us=1_000)


def test_events_are_summed_by_kind_operation_route_and_surface() -> None:
    other = CLAIMED._replace(surface="http", route="POST /charges")
    sums = sums_of([CLAIMED, CLAIMED, FINISHED, other], [1, 3])
    assert {tuple(key): count for key, count in sums.decisions.items()} == {
        (EventKind.CLAIMED, "charge", "", "function"): 2,
        (EventKind.FINISHED, "charge", "", "function"): 1,
        (EventKind.CLAIMED, "charge", "POST /charges", "http"): 1,
    }
    assert sums.durations["charge", "function"] == ([0.002, 0.002], [0.03], [0.001])
    assert sums.batches == [1, 3]


def test_reasons_of_changed_guarantees_are_no_labels() -> None:
    """They have names and times in them, so each would be a series of its own."""
    change = Event(EventKind.GUARANTEE, "", "", "")
    sums = sums_of([change._replace(reason=f"replica {number}") for number in range(50)], [])
    assert [*sums.decisions.values()] == [50]


def test_a_full_tally_is_handed_over_at_once() -> None:
    taken: list[Sums] = []
    tally = Tally(taken.append)
    for _ in range(TALLY_MAX - 1):
        tally.on_event(CLAIMED)
    assert taken == []
    tally.on_event(CLAIMED)
    assert [sum(sums.decisions.values()) for sums in taken] == [TALLY_MAX]


def test_a_lone_event_is_handed_over_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "TALLY_SECONDS", 0.01)
    came = threading.Event()
    tally = Tally(lambda sums: came.set())
    tally.on_event(CLAIMED)
    assert came.wait(90)


def test_threads_lose_nothing() -> None:
    total = [0]
    tally = Tally(lambda sums: total.__setitem__(0, total[0] + sum(sums.decisions.values())))

    def work() -> None:
        for _ in range(2_000):
            tally.on_event(CLAIMED)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.flush()
    assert total == [16_000]


def test_a_forked_child_does_not_count_what_its_parent_has() -> None:
    taken: list[Sums] = []
    tally = Tally(taken.append)
    tally.on_event(CLAIMED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tally's timer is another thread
        pid = os.fork()
    if pid == 0:
        tally.flush()
        os._exit(len(taken))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    tally.flush()
    assert len(taken) == 1
