"""One step of a body: intent, call, result; and what is asked of the other side in between."""

from __future__ import annotations

import pytest
from tests.core.making import FENCE, ID, ME, NOW, record
from tests.core.scripted import LEASE, MAYBE, REFUSED, SECOND, Script, grant

from oncekey.core.commands import Done, Look, Lost, SaveStep, Seen
from oncekey.core.effects import (
    ApplyCommand,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Step
from oncekey.core.step_flow import RETRY_FIRST_US, UNSAVED, StepOutcome, step

PLAIN = RuntimeError("boom")
GRACE = 10 * SECOND
BEGUN = Step("pay", False, b"child", 1)
INTENT = SaveStep(ID, ME, FENCE, "pay", False, b"child")
RESULT = SaveStep(ID, ME, FENCE, "pay", True, b"paid")


def paying(saved: Step | None = None, *, deadline: int = LEASE, grace: int | None = None) -> Script:
    """The step "pay" of ME, whose deadline heartbeats have moved since the grant; with a `grace` it
    has a probe."""
    return Script(step(grant(deadline=1), deadline, "pay", b"child", saved, grace))


def test_a_finished_step_is_not_run_again() -> None:
    script = paying(Step("pay", True, b"paid", 1))
    assert script.result == StepOutcome(b"paid")


def test_a_step_is_intent_then_run_then_result() -> None:
    script = paying()
    assert script.command(SaveStep) == SaveStep(ID, ME, FENCE, "pay", False, b"child")
    script.reply(Done())
    assert script.expect(RunStep) == RunStep("pay")
    script.send(Returned(b"paid", LEASE, raw="r", kept=False))
    assert script.command(SaveStep) == SaveStep(ID, ME, FENCE, "pay", True, b"paid")
    script.reply(Done())
    assert script.result == StepOutcome(b"paid", "r", False, called=True)


def test_a_step_met_unfinished_writes_its_intent_again_and_runs() -> None:
    """Who was overtaken is told so there; and `probe_grace` counts from the last call."""
    script = paying(BEGUN)
    assert script.command(SaveStep) == INTENT
    script.reply(Done())
    script.expect(RunStep)


def running() -> Script:
    """A step whose function is about to be called."""
    script = paying()
    script.reply(Done())
    script.expect(RunStep)
    return script


def test_a_raising_step_records_nothing() -> None:
    script = running()
    script.send(Raised(PLAIN, LEASE))
    assert script.result == StepOutcome(error=PLAIN, called=True)


@pytest.mark.parametrize("saved", [None, BEGUN], ids=["first", "again"])
def test_a_step_of_an_overtaken_attempt_is_not_called(saved: Step | None) -> None:
    script = paying(saved)
    script.reply(Lost())
    assert script.result == StepOutcome(lost=True)


def test_a_result_of_an_overtaken_attempt_is_not_recorded() -> None:
    script = running()
    script.send(Returned(b"paid", LEASE))
    script.reply(Lost())
    assert script.result == StepOutcome(lost=True, called=True)


def test_saving_a_step_is_repeated_until_the_deadline() -> None:
    script = paying(deadline=SECOND)
    sent = script.command(SaveStep)
    pauses = []
    while not script.ended:
        assert script.command(SaveStep) == sent
        script.reply(MAYBE)
        if not script.ended:
            pauses.append(script.sleep().us)
    assert script.now == SECOND
    assert pauses[:2] == [RETRY_FIRST_US, 2 * RETRY_FIRST_US]
    assert script.result == StepOutcome(error=MAYBE, unrecorded=True)


def test_the_result_of_a_step_is_saved_until_the_deadline_of_that_moment() -> None:
    """Heartbeats have moved it while the step ran."""
    script = paying(deadline=1)
    script.reply(Done())
    script.send(Returned(b"paid", SECOND))
    while not script.ended:
        script.reply(MAYBE)
        if not script.ended:
            script.sleep()
    assert script.now == SECOND


def test_the_body_of_a_step_never_runs_before_its_intent_is_on_record() -> None:
    script = paying()
    for _ in range(5):
        assert isinstance(script.ask, (ApplyCommand, Sleep))
        if isinstance(script.ask, ApplyCommand):
            script.reply(MAYBE)
        else:
            script.sleep()
    script.expect(Sleep)
    script.sleep()
    script.reply(Done())
    script.expect(RunStep)


def test_i14_a_step_in_doubt_whose_result_is_there_is_not_called_again() -> None:
    script = paying(BEGUN._replace(at=UNSAVED))
    assert script.command(Look) == Look(ID)
    script.reply(Seen(record(steps=(Step("pay", True, b"paid", NOW),)), NOW))
    assert script.result == StepOutcome(b"paid")


def test_i11_a_step_in_doubt_writes_its_intent_before_it_counts_from_it() -> None:
    """Else a probe's no would never be believed: there is no time it could be late after."""
    script = paying(BEGUN._replace(at=UNSAVED), grace=GRACE)
    script.reply(Seen(record(steps=()), NOW))
    assert script.command(SaveStep) == INTENT
    script.reply(Done())
    look(script, NOW, NOW)
    script.expect(Probe)


def test_a_step_that_sends_something_else_now_writes_that_down_first() -> None:
    script = paying(BEGUN._replace(body=b"without a request"))
    assert script.command(SaveStep) == INTENT


# --- probes ---------------------------------------------------------------------------------------


def probing(*, begun: int = NOW, now: int = NOW) -> Script:
    """A step met unfinished, begun at one time of the store's clock and met at another."""
    script = paying(BEGUN, grace=GRACE)
    look(script, begun, now)
    return script


def look(script: Script, begun: int, now: int) -> None:
    assert script.command(Look) == Look(ID)
    script.reply(Seen(record(steps=(BEGUN._replace(at=begun),)), now))


def test_a_step_never_begun_is_not_probed() -> None:
    script = paying(grace=GRACE)
    assert script.command(SaveStep) == INTENT
    script.reply(Done())
    script.expect(RunStep)


def test_a_finished_step_is_not_probed() -> None:
    assert paying(BEGUN._replace(done=True, body=b"paid"), grace=GRACE).ended


def test_what_the_probe_finds_is_recorded_and_nothing_is_called() -> None:
    script = probing()
    assert script.expect(Probe) == Probe("pay")
    script.send(Returned(b"paid", LEASE))
    assert script.command(SaveStep) == RESULT
    script.reply(Done())
    assert script.result == StepOutcome(b"paid")


def test_a_no_is_believed_once_the_call_has_had_its_time() -> None:
    script = probing(begun=NOW, now=NOW + 10 * SECOND)
    script.expect(Probe)
    script.send(ProbeFoundNothing(LEASE))
    # The intent again, with a new time: from here on another call is under way.
    assert script.command(SaveStep) == INTENT
    script.reply(Done())
    script.expect(RunStep)


def test_a_no_is_not_believed_while_the_call_may_be_under_way() -> None:
    script = probing(begun=NOW, now=NOW + 4 * SECOND)
    script.expect(Probe)
    script.send(ProbeFoundNothing(LEASE))
    assert script.sleep().us == 6 * SECOND
    # It slept less (waiters are spread): the store's clock decides, not the sleep.
    look(script, NOW, NOW + 10 * SECOND - 1)
    script.expect(Probe)
    script.send(ProbeFoundNothing(LEASE))
    script.sleep()
    look(script, NOW, NOW + 10 * SECOND)
    script.expect(Probe)
    script.send(ProbeFoundNothing(LEASE))
    assert script.command(SaveStep) == INTENT


def test_a_call_that_arrived_late_is_found_by_the_later_probe() -> None:
    script = probing(begun=NOW, now=NOW + 4 * SECOND)
    script.send(ProbeFoundNothing(LEASE))
    script.sleep()
    look(script, NOW, NOW + 11 * SECOND)
    script.expect(Probe)
    script.send(Returned(b"paid", LEASE))
    assert script.command(SaveStep) == RESULT


def test_the_clock_is_read_before_the_other_side_is_asked() -> None:
    """Asked first, a call that arrives between the two would be missed."""
    script = paying(BEGUN, grace=GRACE)
    script.expect(ApplyCommand)


def test_after_a_long_wait_the_deadline_is_that_of_the_moment() -> None:
    script = paying(BEGUN, deadline=SECOND, grace=GRACE)
    look(script, NOW, NOW)
    script.send(ProbeFoundNothing(60 * SECOND))
    script.sleep()  # ten seconds, in which heartbeats have held the lease
    script.reply(MAYBE)
    script.expect(Sleep)


def test_a_probe_that_raises_ends_the_step_unfinished() -> None:
    script = probing()
    script.send(Raised(PLAIN, LEASE))
    assert script.result == StepOutcome(error=PLAIN)


@pytest.mark.parametrize("told", [MAYBE, REFUSED], ids=["no answer", "refused"])
def test_without_the_stores_clock_nothing_is_asked_or_called(told: StoreUnavailable) -> None:
    script = paying(BEGUN, deadline=SECOND, grace=GRACE)
    while not script.ended:
        script.command(Look)
        script.reply(told)
        if not script.ended:
            script.sleep()
    assert script.result == StepOutcome(error=told, unrecorded=True)


def test_an_overtaken_attempt_that_waited_for_a_probe_calls_nothing() -> None:
    script = probing(now=NOW + 20 * SECOND)
    script.send(ProbeFoundNothing(LEASE))
    script.reply(Lost())
    assert script.result == StepOutcome(lost=True)
