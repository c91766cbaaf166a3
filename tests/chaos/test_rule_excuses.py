"""What faults excuse, and what they do not: a rule that excused too much would find nothing."""

from __future__ import annotations

from tests.chaos.histories import FENCE, ID, HandMade, answered
from tests.chaos.test_invariant_rules import early_takeover, good, unheard_owner
from tests.support.chaos.invariant_rules import check
from tests.support.chaos.operation_history import read_history


def test_a_takeover_after_a_jump_of_the_databases_clock_is_not_judged() -> None:
    made = early_takeover().fault(1.5, 1.9, "database clock jumps", "database")
    assert made.violations() == []


def test_a_commit_that_failed_and_is_told_as_a_failure_is_no_violation() -> None:
    made = HandMade("late").send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.15).effect(1.1)
    made.reply(1.2, 1, 500).send(2.0, 2).reply(2.1, 2, 500, code="failed")
    assert made.record(state=3, body="").finished().violations() == []
    assert good(answered("late").row()).violations() == []


def test_an_answer_of_the_app_that_says_500_needs_no_row_though_it_is_replayed() -> None:
    made = HandMade("late").send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.15).effect(1.1)
    made.reply(1.2, 1, 500, code="rows-failed").send(2.0, 2)
    made.reply(2.1, 2, 500, code="rows-failed", replayed=True)
    assert made.record(body='{"code":"rows-failed"}', status=500).finished().violations() == []


def test_what_had_begun_before_a_store_lost_its_protection_could_not_be_refused() -> None:
    made = good(answered().unprotected(1.1, 4.0).effect(150.0, "e-2", FENCE + 1))
    assert made.violations() == []
    made = good(answered().unprotected(1.1, 4.0, "new store").effect(150.0, "e-2", FENCE + 1))
    assert made.violated() == {"I1"}, "it has nothing to do with the other store"
    made = good(answered().unprotected(2.0, 4.0).effect(150.0, "e-2", FENCE + 1))
    assert made.violated() == {"I1"}, "it had ended, and its end was durable"


def test_a_key_may_be_pending_again_that_was_told_to_be_unknown_by_a_store_that_lost_it() -> None:
    made = HandMade("once").send(1.0, 1).engine(1.05, "claimed").effect(1.1)
    made.add(1.06, "begin", id=ID, fence=FENCE, attempt=1, by="worker-0")  # and it is killed
    made.send(9.0, 2).reply(9.1, 2, 409, code="outcome-unknown").record(1).finished()
    assert made.violated() == {"I11"}
    assert made.unprotected(8.0, 10.0).violations() == []


def test_a_worker_may_answer_500_that_starts_while_its_store_is_too_weak() -> None:
    made = answered().send(6.0, 3).reply(6.1, 3, 500)
    made.fault(5.5, 7.0, "detached standby promoted", "database")
    assert good(made).violations() == []


def test_an_owner_that_was_killed_need_not_be_heard() -> None:
    made = unheard_owner().fault(1.3, 1.9, "worker killed", "worker 0")
    assert made.violations() == []


def test_a_transaction_that_has_lost_its_connection_holds_nothing() -> None:
    made = HandMade("transactional").send(1.0, 1).engine(1.05, "claimed").body(1.06, 3.0)
    made.engine(2.0, "claimed", FENCE + 1).body(2.0, 3.1, FENCE + 1)
    made.engine(3.2, "finished", FENCE + 1).reply(3.3, 1)
    made.add(200.0, "row", id=ID, run="e-1", cents=1)
    assert made.record(fence=FENCE + 1).finished().violations() == []


def test_a_kill_long_after_the_end_is_no_excuse_unless_something_was_in_the_way() -> None:
    made = unheard_owner().fault(15.0, 16.0, "worker killed", "worker 0")
    assert made.violated() == {"I14"}
    made = unheard_owner().fault(15.0, 16.0, "worker killed", "worker 0")
    assert made.fault(1.15, 14.0, "worker paused", "worker 0").violations() == []


def test_a_driver_that_loses_the_connection_of_the_rows_is_no_violation() -> None:
    made = answered("transactional").send(6.0, 3).reply(6.1, 3, 500)
    made.add(200.0, "row", id=ID, run="e-1", cents=1)
    assert good(made).violations() == []


def test_the_kill_of_another_worker_is_no_excuse() -> None:
    made = unheard_owner().fault(1.3, 1.9, "worker killed", "worker 1")
    assert made.violated() == {"I14"}


def test_a_late_owner_may_answer_a_key_that_was_unknown() -> None:
    made = answered().send(0.2, 9).reply(0.3, 9, 409, code="outcome-unknown")
    assert good(made).violations() == []


def test_another_caller_has_the_key_for_itself() -> None:
    made = good(answered())
    other = answered()
    other.id = "acct_9/1-000001"
    other.events.clear()
    other.send(2.0, 50).effect(2.1, "e-7").reply(2.2, 50, body=other.answer("e-7"))
    other.record(body=other.answer("e-7"))
    other.events[-1]["record"] = "f" * 32
    events = sorted([*made.events, *other.events], key=lambda event: event["at"])
    assert check(read_history(events)) == []
