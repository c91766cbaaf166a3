"""Each rule of chaos finds a history that breaks its invariant, and nothing else in a good one.

A history is made by hand: one operation with one fault in what was seen of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.histories import FENCE, ID, HandMade, answered
from tests.support.chaos.invariant_rules import OBSERVED, RULES

OTHER = "acct_2/1-000009"


def good(made: HandMade) -> HandMade:
    return made.record().finished()


def test_a_history_in_which_everything_went_well_has_no_violation() -> None:
    assert good(answered()).violations() == []


def test_every_invariant_is_said_how_it_is_seen_and_has_a_rule() -> None:
    ruled = {rule.__name__.split("_")[0].upper() for rule in RULES} | {"I12"}
    assert set(OBSERVED) == {f"I{number}" for number in range(1, 17)} == ruled


def test_what_faults_do_to_requests_is_no_violation() -> None:
    """Lost replies, a store that is away and requests in flight before the answer are expected."""
    made = answered().send(0.1, 7).send(0.2, 8).reply(0.9, 8, 503, code="unavailable")
    made.send(0.3, 9).reply(0.4, 9, 409, code="in-flight")
    made.send(6.0, 10).reply(6.1, 10, 503, code="not-recorded")
    assert good(made).violations() == []


def two_effects() -> HandMade:
    return good(answered().effect(3.0, "e-2", FENCE + 1))


def two_rows() -> HandMade:
    made = HandMade("transactional").send(1.0, 1).reply(1.2, 1, body='{"effect":"r-1","id":"'
                                                       + ID + '","account":"acct_1"}')  # fmt: skip
    body = '{"effect":"r-1","id":"' + ID + '","account":"acct_1"}'
    made.add(200.0, "row", id=ID, run="r-1", cents=1).add(200.0, "row", id=ID, run="r-2", cents=1)
    return made.record(body=body).finished()


def two_finishes() -> HandMade:
    return good(answered().engine(4.0, "finished", FENCE + 1)).record(fence=FENCE + 1)


def two_first_answers() -> HandMade:
    return good(answered().send(6.0, 3).reply(6.1, 3))


def another_answer() -> HandMade:
    made = answered()
    return good(made.send(6.0, 3).reply(6.1, 3, body=made.answer() + " ", replayed=True))


def in_flight_after_the_answer() -> HandMade:
    return good(answered().send(6.0, 3).reply(6.1, 3, 409, code="in-flight"))


def unknown_after_the_answer() -> HandMade:
    return good(answered().send(6.0, 3).reply(6.1, 3, 409, code="outcome-unknown"))


def lost_row() -> HandMade:
    made = HandMade("transactional").send(1.0, 1).reply(1.2, 1)
    return good(made)


def two_rows_of_one_run() -> HandMade:
    """As if one transaction had been committed twice."""
    made = HandMade("transactional").send(1.0, 1).reply(1.2, 1)
    row = {"id": ID, "run": "e-1", "cents": 1}
    return good(made.add(200.0, "row", **row).add(200.0, "row", **row))


def error_after_the_answer() -> HandMade:
    return good(answered().send(6.0, 3).reply(6.1, 3, 500))


def row_without_its_record() -> HandMade:
    made = HandMade("transactional").send(1.0, 1).reply(1.2, 1, 422, code="key-reused")
    made.send(0.5, 2, "other body").reply(0.6, 2, 503, code="rows-unavailable")
    return made.add(200.0, "row", id=ID, run="r-1", cents=1).finished()


def record_without_its_row() -> HandMade:
    made = HandMade("transactional").send(1.0, 1).reply(1.2, 1, 422, code="key-reused")
    made.send(0.5, 2, "other body").reply(0.6, 2, 503, code="rows-unavailable")
    return good(made)


def claimed_anew_while_it_is_held() -> HandMade:
    """The store has lost the claim, and the provider has recognised the child key."""
    made = HandMade("fenced").send(1.0, 1).engine(1.05, "claimed").body(1.06, 3.0).effect(1.1)
    made.engine(2.0, "claimed", FENCE + 1, 2).engine(3.2, "finished", FENCE + 1).reply(3.3, 1)
    return made.record(fence=FENCE + 1).finished()


def one_fence_for_two_workers() -> HandMade:
    made = answered("fenced").engine(1.07, "claimed")
    made.events[-1]["by"] = "worker-1"
    return good(made)


def retry_safe_and_unknown() -> HandMade:
    return good(answered("fenced").send(0.1, 3).reply(0.2, 3, 409, code="outcome-unknown"))


def begun_without_a_record() -> HandMade:
    made = HandMade("once").send(1.0, 1).body(1.06, 1.2).effect(1.1)
    made.fault(1.2, 1.3, "worker killed", "worker 0")
    return made.send(150.0, 2).reply(150.1, 2, 409, code="outcome-unknown").finished()


def freed_although_it_ended() -> HandMade:
    made = HandMade("once").send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.2).effect(1.1)
    return made.send(9.0, 2).reply(9.1, 2, 409, code="outcome-unknown").record(0).finished()


def early_takeover() -> HandMade:
    made = HandMade("fenced").send(1.0, 1).engine(1.05, "claimed").body(1.06, 3.0).effect(1.1)
    made.engine(2.0, "takeover", FENCE + 1, 2).engine(3.2, "finished", FENCE + 1).reply(3.3, 1)
    return made.record(fence=FENCE + 1).finished()


def a_lower_fence_later() -> HandMade:
    made = answered("fenced").engine(2.0, "takeover", FENCE - 10, 2)
    return good(made)


def an_old_fence_in_the_record() -> HandMade:
    return answered("fenced").engine(2.0, "takeover", FENCE + 5, 2).record().finished()


def two_requests_under_one_key() -> HandMade:
    made = answered()
    made.send(6.0, 3, "other body").reply(6.1, 3, variant="other body", replayed=True)
    return good(made)


def mismatch_with_itself() -> HandMade:
    return good(answered().send(0.5, 3).reply(0.6, 3, 422, code="key-reused"))


def answer_of_another_caller() -> HandMade:
    made = HandMade().send(1.0, 1).effect(1.1).engine(1.05, "claimed")
    answer = made.answer(id=OTHER)
    return made.reply(1.2, 1, body=answer).record(body=answer).finished()


def two_bodies_of_one_fence() -> HandMade:
    return good(answered().body(1.3, 1.4))


def in_flight_long_after_the_faults() -> HandMade:
    made = HandMade("fenced").send(1.0, 1).send(190.0, 2).reply(190.1, 2, 409, code="in-flight")
    made.engine(1.05, "claimed").effect(1.1)
    return good(made.send(195.0, 3).reply(195.1, 3))


def pending_at_the_end() -> HandMade:
    made = HandMade("once").send(1.0, 1).engine(1.05, "claimed")
    return made.send(150.0, 2).reply(150.1, 2, 409, code="outcome-unknown").record(1).finished()


def nobody_knows() -> HandMade:
    return HandMade("once").send(1.0, 1).record(2).finished()


def message_without_effect() -> HandMade:
    made = HandMade("queue", "queue/1-000002").add(1.0, "publish", id="queue/1-000002")
    return made.add(1.1, "published", id="queue/1-000002").finished()


def not_complete() -> HandMade:
    return answered().record().finished(complete=False)


def swept_too_early() -> HandMade:
    return answered().record().finished(past=3)


def no_record() -> HandMade:
    return answered().finished()


def record_with_another_answer() -> HandMade:
    made = answered()
    return made.record(body=made.answer("e-9")).finished()


def unheard_owner() -> HandMade:
    made = HandMade("once").send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.2).effect(1.1)
    return made.send(9.0, 2).reply(9.1, 2, 409, code="outcome-unknown").record(4).finished()


def replay_for_a_bad_token() -> HandMade:
    made = answered().send(6.0, 3, "bad token")
    return good(made.reply(6.1, 3, 409, code="in-flight", variant="bad token"))


def two_late_rows() -> HandMade:
    """One effect, and two rows: the second attempt has found the first one's COMMIT unanswered."""
    return good(answered("late").row().row("r-2"))


def two_effects_of_one_row() -> HandMade:
    return good(answered("late").row().effect(3.0, "e-2", FENCE + 1))


def success_without_its_row() -> HandMade:
    """The COMMIT failed after the outcome was stored; the effect at the provider is there."""
    return good(answered("late"))


def replayed_without_its_row() -> HandMade:
    """As above, but the first answer was lost on its way, and only a retry got it."""
    made = HandMade("late").send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.15).effect(1.1)
    made.engine(1.16, "finished").send(5.0, 2).reply(5.1, 2, replayed=True)
    return good(made)


def success_with_the_row_of_another_run() -> HandMade:
    return good(answered("late").row("e-9"))


def success_in_the_record_without_its_row() -> HandMade:
    """Nobody was told of the success, but whoever asks next will be."""
    made = HandMade("late").send(1.0, 1).reply(1.2, 1, 422, code="key-reused")
    made.send(0.5, 2, "other body").reply(0.6, 2, 500).effect(0.55)
    return good(made)


def ran_on_a_store_without_protection() -> HandMade:
    """It began when the store had said that it may lose what it acknowledges, and was lost."""
    made = answered().unprotected(0.5, 4.0).effect(150.0, "e-2", FENCE + 1)
    return good(made)


def ran_on_an_unprotected_new_store() -> HandMade:
    made = answered("moved").unprotected(0.5, 4.0, "new store").effect(150.0, "e-2", FENCE + 1)
    return good(made)


def removed_as_the_duplicate_of_another_broker() -> HandMade:
    """The consumer of a second broker has found the keys of the first one's messages."""
    id = "second/1-000002"
    made = HandMade("queue", id).add(1.0, "publish", id=id, body="{}")
    return made.add(1.1, "published", id=id).finished()


BROKEN: list[tuple[str, Callable[[], HandMade]]] = [
    ("I1", two_effects),
    ("I1", two_rows),
    ("I1", two_rows_of_one_run),
    ("I2", two_finishes),
    ("I2", two_first_answers),
    ("I3", another_answer),
    ("I4", in_flight_after_the_answer),
    ("I4", unknown_after_the_answer),
    ("I4", lost_row),
    ("I4", error_after_the_answer),
    ("I4", row_without_its_record),
    ("I4", record_without_its_row),
    ("I5", early_takeover),
    ("I5", claimed_anew_while_it_is_held),
    ("I6", a_lower_fence_later),
    ("I6", an_old_fence_in_the_record),
    ("I6", one_fence_for_two_workers),
    ("I7", two_requests_under_one_key),
    ("I7", mismatch_with_itself),
    ("I8", answer_of_another_caller),
    ("I9", two_bodies_of_one_fence),
    ("I10", in_flight_long_after_the_faults),
    ("I10", retry_safe_and_unknown),
    ("I11", pending_at_the_end),
    ("I11", nobody_knows),
    ("I11", message_without_effect),
    ("I11", not_complete),
    ("I12", swept_too_early),
    ("I12", begun_without_a_record),
    ("I13", no_record),
    ("I13", record_with_another_answer),
    ("I14", unheard_owner),
    ("I14", freed_although_it_ended),
    ("I15", replay_for_a_bad_token),
    ("I1", two_late_rows),
    ("I1", two_effects_of_one_row),
    ("I1", ran_on_a_store_without_protection),
    ("I1", ran_on_an_unprotected_new_store),
    ("I11", removed_as_the_duplicate_of_another_broker),
    ("I16", success_without_its_row),
    ("I16", replayed_without_its_row),
    ("I16", success_with_the_row_of_another_run),
    ("I16", success_in_the_record_without_its_row),
]


@pytest.mark.parametrize(
    ("invariant", "make"), BROKEN, ids=[f"{name}-{make.__name__}" for name, make in BROKEN]
)
def test_a_broken_history_violates_exactly_its_invariant(
    invariant: str, make: Callable[[], HandMade]
) -> None:
    assert make().violated() == {invariant}


def test_a_run_that_was_stopped_says_only_that() -> None:
    """What its processes were stopped in is no violation of its own."""
    made = HandMade("once").send(1.0, 1).engine(1.05, "claimed").record(1)
    (violation,) = made.finished(complete=False).violations()
    assert violation.invariant == "I11"
    assert violation.text.endswith(f"unknown: 1, the first is of {made.id}")


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {name for name, _ in BROKEN} == set(OBSERVED)


def test_the_page_about_chaos_says_how_each_invariant_is_seen() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/chaos.md").read_text(encoding="utf-8")
    assert [name for name in OBSERVED if f"\n| {name} | " not in page] == []
