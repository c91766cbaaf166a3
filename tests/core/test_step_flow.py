"""One step of a body: its intent, its call, its result; and the probe before a further call."""

from __future__ import annotations

import pytest
from tests.core.sample_records import FENCE, ID, ME, NOW, record
from tests.core.scripted_driver import LEASE, MAYBE, REFUSED, SECOND, FlowDriver, grant

from oncekey.core.commands import Done, Look, Lost, SaveStep, Seen
from oncekey.core.effects import (
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


def paying(
    saved: Step | None = None, *, deadline: int = LEASE, grace: int | None = None
) -> FlowDriver:
    """The step "pay" of ME, whose deadline heartbeats have moved since the grant; with a `grace` it
    has a probe."""
    return FlowDriver(step(grant(deadline=1), deadline, "pay", b"child", saved, grace))


def test_a_finished_step_is_not_run_again() -> None:
    driver = paying(Step("pay", True, b"paid", 1))
    assert driver.result == StepOutcome(b"paid")


def test_a_step_stores_its_intent_runs_and_stores_its_result() -> None:
    driver = paying()
    assert driver.command(SaveStep) == SaveStep(ID, ME, FENCE, "pay", False, b"child")
    driver.reply(Done())
    assert driver.expect(RunStep) == RunStep("pay")
    driver.send(Returned(b"paid", LEASE, raw="r", kept=False))
    assert driver.command(SaveStep) == SaveStep(ID, ME, FENCE, "pay", True, b"paid")
    driver.reply(Done())
    assert driver.result == StepOutcome(b"paid", "r", False, called=True)


def test_an_unfinished_step_stores_its_intent_again_and_runs() -> None:
    """An owner that was overtaken learns it there, and `probe_grace` counts from the last call."""
    driver = paying(BEGUN)
    assert driver.command(SaveStep) == INTENT
    driver.reply(Done())
    driver.expect(RunStep)


def running() -> FlowDriver:
    """A step whose function is about to be called."""
    driver = paying()
    driver.reply(Done())
    driver.expect(RunStep)
    return driver


def test_a_step_that_raises_stores_no_result() -> None:
    driver = running()
    driver.send(Raised(PLAIN, LEASE))
    assert driver.result == StepOutcome(error=PLAIN, called=True)


@pytest.mark.parametrize("saved", [None, BEGUN], ids=["first", "again"])
def test_a_step_of_an_overtaken_attempt_is_not_called(saved: Step | None) -> None:
    driver = paying(saved)
    driver.reply(Lost())
    assert driver.result == StepOutcome(lost=True)


def test_the_result_of_an_overtaken_attempt_is_not_stored() -> None:
    driver = running()
    driver.send(Returned(b"paid", LEASE))
    driver.reply(Lost())
    assert driver.result == StepOutcome(lost=True, called=True)


def test_storing_an_intent_is_repeated_until_the_deadline() -> None:
    driver = paying(deadline=SECOND)
    sent = driver.command(SaveStep)
    pauses = []
    while not driver.ended:
        assert driver.command(SaveStep) == sent
        driver.reply(MAYBE)
        if not driver.ended:
            pauses.append(driver.sleep().us)
    assert driver.now == SECOND
    assert pauses[:2] == [RETRY_FIRST_US, 2 * RETRY_FIRST_US]
    assert driver.result == StepOutcome(error=MAYBE, unrecorded=True)


def test_storing_a_result_is_repeated_until_the_current_deadline() -> None:
    """Heartbeats have moved it while the step ran."""
    driver = paying(deadline=1)
    driver.reply(Done())
    driver.send(Returned(b"paid", SECOND))
    while not driver.ended:
        driver.reply(MAYBE)
        if not driver.ended:
            driver.sleep()
    assert driver.now == SECOND


def test_a_step_is_never_called_before_its_intent_is_stored() -> None:
    driver = paying()
    for _ in range(5):
        assert isinstance(driver.effect, (SaveStep, Sleep))
        if isinstance(driver.effect, SaveStep):
            driver.reply(MAYBE)
        else:
            driver.sleep()
    driver.expect(Sleep)
    driver.sleep()
    driver.reply(Done())
    driver.expect(RunStep)


def test_i14_an_uncertain_step_whose_result_is_stored_is_not_called_again() -> None:
    driver = paying(BEGUN._replace(at=UNSAVED))
    assert driver.command(Look) == Look(ID)
    driver.reply(Seen(record(steps=(Step("pay", True, b"paid", NOW),)), NOW))
    assert driver.result == StepOutcome(b"paid")


def test_i11_an_uncertain_step_stores_its_intent_before_probe_grace_counts() -> None:
    """Otherwise there is no time for `probe_grace` to count from."""
    driver = paying(BEGUN._replace(at=UNSAVED), grace=GRACE)
    driver.reply(Seen(record(steps=()), NOW))
    assert driver.command(SaveStep) == INTENT
    driver.reply(Done())
    look(driver, NOW, NOW)
    driver.expect(Probe)


def test_a_step_with_another_intent_stores_it_before_the_call() -> None:
    driver = paying(BEGUN._replace(body=b"without a request"))
    assert driver.command(SaveStep) == INTENT


# --- probes ---------------------------------------------------------------------------------------


def probing(*, begun: int = NOW, now: int = NOW) -> FlowDriver:
    """An unfinished step, and the times of the store's clock at its last call and now."""
    driver = paying(BEGUN, grace=GRACE)
    look(driver, begun, now)
    return driver


def look(driver: FlowDriver, begun: int, now: int) -> None:
    assert driver.command(Look) == Look(ID)
    driver.reply(Seen(record(steps=(BEGUN._replace(at=begun),)), now))


def test_a_step_never_begun_is_not_probed() -> None:
    driver = paying(grace=GRACE)
    assert driver.command(SaveStep) == INTENT
    driver.reply(Done())
    driver.expect(RunStep)


def test_a_finished_step_is_not_probed() -> None:
    assert paying(BEGUN._replace(done=True, body=b"paid"), grace=GRACE).ended


def test_the_result_of_a_probe_is_stored_and_the_step_not_called() -> None:
    driver = probing()
    assert driver.expect(Probe) == Probe("pay")
    driver.send(Returned(b"paid", LEASE))
    assert driver.command(SaveStep) == RESULT
    driver.reply(Done())
    assert driver.result == StepOutcome(b"paid")


def test_a_probe_that_finds_nothing_is_believed_after_its_grace() -> None:
    driver = probing(begun=NOW, now=NOW + 10 * SECOND)
    driver.expect(Probe)
    driver.send(ProbeFoundNothing(LEASE))
    # The intent again, with a new time: it belongs to the next call.
    assert driver.command(SaveStep) == INTENT
    driver.reply(Done())
    driver.expect(RunStep)


def test_a_probe_that_finds_nothing_is_called_again_until_its_grace_is_over() -> None:
    driver = probing(begun=NOW, now=NOW + 4 * SECOND)
    driver.expect(Probe)
    driver.send(ProbeFoundNothing(LEASE))
    assert driver.sleep().us == 6 * SECOND
    # It slept less, because of jitter: the store's clock decides, not the sleep.
    look(driver, NOW, NOW + 10 * SECOND - 1)
    driver.expect(Probe)
    driver.send(ProbeFoundNothing(LEASE))
    driver.sleep()
    look(driver, NOW, NOW + 10 * SECOND)
    driver.expect(Probe)
    driver.send(ProbeFoundNothing(LEASE))
    assert driver.command(SaveStep) == INTENT


def test_a_call_that_arrived_late_is_found_by_the_later_probe() -> None:
    driver = probing(begun=NOW, now=NOW + 4 * SECOND)
    driver.send(ProbeFoundNothing(LEASE))
    driver.sleep()
    look(driver, NOW, NOW + 11 * SECOND)
    driver.expect(Probe)
    driver.send(Returned(b"paid", LEASE))
    assert driver.command(SaveStep) == RESULT


def test_the_stores_clock_is_read_before_the_probe_is_called() -> None:
    """In the other order a call that arrives between the two would be missed."""
    driver = paying(BEGUN, grace=GRACE)
    driver.expect(Look)


def test_after_a_long_wait_for_a_probe_the_deadline_is_the_current_one() -> None:
    driver = paying(BEGUN, deadline=SECOND, grace=GRACE)
    look(driver, NOW, NOW)
    driver.send(ProbeFoundNothing(60 * SECOND))
    driver.sleep()  # for ten seconds, in which heartbeats have renewed the lease
    driver.reply(MAYBE)
    driver.expect(Sleep)


def test_a_probe_that_raises_ends_the_step_unfinished() -> None:
    driver = probing()
    driver.send(Raised(PLAIN, LEASE))
    assert driver.result == StepOutcome(error=PLAIN)


@pytest.mark.parametrize("failure", [MAYBE, REFUSED], ids=["no answer", "refused"])
def test_if_the_store_is_unavailable_neither_probe_nor_step_is_called(
    failure: StoreUnavailable,
) -> None:
    driver = paying(BEGUN, deadline=SECOND, grace=GRACE)
    while not driver.ended:
        driver.command(Look)
        driver.reply(failure)
        if not driver.ended:
            driver.sleep()
    assert driver.result == StepOutcome(error=failure, unrecorded=True)


def test_an_overtaken_attempt_that_waited_for_a_probe_calls_nothing() -> None:
    driver = probing(now=NOW + 20 * SECOND)
    driver.send(ProbeFoundNothing(LEASE))
    driver.reply(Lost())
    assert driver.result == StepOutcome(lost=True)
