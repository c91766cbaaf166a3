"""The contract of every broker: whatever its client library raises, at whichever call, the consumer
goes on and a log line says why; or it is a refusal, and `run` raises it.

The brokers are real (SQS is an emulator); only the calls of their client libraries fail. Which
calls there are is not written down here: a run without faults is recorded first, and each call that
it made must fail once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.queues.client_errors import ANY, is_named
from tests.queues.fault_cases import CASES, FaultCase
from tests.queues.faulted_consumer import START, FaultedConsumer, faulted

# The phases of a run in which a call may be made, those in which a fault is cheapest first.
WORK = ("ok", "dead", "held", "retried")
RECONNECT, STOP = "reconnect", "stop"
PHASES = ("ok", "dead", "held", RECONNECT, "retried", STOP, START)
SOAK = bool(os.environ.get("ONCEKEY_SOAK"))

# A client whose own `close` has failed leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def sockets_left_behind() -> Iterator[None]:
    """Collects them after all that holds them has gone, or another test would be told of them."""
    yield
    gc.collect()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FaultCase:
    return CASES[request.param](monkeypatch)


def record(run: FaultedConsumer) -> dict[str, str]:
    """Run without faults from start to stop; the first phase in which each call was made."""
    seam = run.seam
    run.start("join")
    run.wait_until_all_done()
    for phase in WORK:
        seam.phase = phase
        run.case.provoke()
        run.send(phase)
        extend, write = run.case.calls.get("extend"), run.case.calls.get("write")
        if phase == "held" and extend is not None:
            run.wait(partial(_was_called, run, extend, phase), "the message was extended")
        run.release.set()
        run.wait_until_all_done()
        if phase == "dead" and write is not None:  # a message is settled before that is called
            run.wait(partial(_was_called, run, write, phase), "the message was written elsewhere")
        run.wait(lambda: not run.consumer.in_hand, "all are settled")
    seam.phase = RECONNECT
    disconnect(run)
    run.wait(lambda: seam.is_spent or not run.is_alive, "the connection is cut")
    run.send()
    run.wait_until_all_done()
    run.wait(lambda: not run.consumer.in_hand, "all are settled")
    seam.phase = STOP
    run.stop()
    run.join()
    assert run.error is None
    phases: dict[str, str] = {}
    for phase in PHASES:
        for label in seam.labels[phase]:
            phases.setdefault(label, phase)
    # A message may be extended in any phase, but only one that is held surely is.
    phases.update({label: "held" for kind, label in run.case.calls.items() if kind == "extend"})
    return phases


def _was_called(run: FaultedConsumer, label: str, phase: str) -> bool:
    return label in run.seam.labels[phase]


def disconnect(run: FaultedConsumer) -> None:
    """Have the client lose its connection, where it has one."""
    run.seam.fail(run.case.calls[run.case.cut], ConnectionResetError("the connection is cut"))
    run.send()


def fail_in_work(run: FaultedConsumer, label: str, phase: str, error: BaseException) -> None:
    if not run.is_alive:
        run.start()
    if phase == RECONNECT:  # with all that a client opens until it has a message
        run.send()
        run.wait_until_all_done()
    run.seam.fail(label, error)
    run.case.provoke()
    if phase == RECONNECT:
        disconnect(run)
    else:
        run.send(phase)
    run.wait(lambda: run.seam.is_spent or not run.is_alive, f"{label} has failed")
    run.release.set()
    run.check_alive()
    run.check_named(error)


def fail_at_stop(run: FaultedConsumer, label: str, error: BaseException) -> None:
    """What goes wrong while it leaves ends nothing that was not ending; it is said."""
    if not run.is_alive:
        run.start()
    run.wait_until_all_done()
    run.seam.fail(label, error)
    run.stop()
    run.join()
    assert run.error is None
    assert run.seam.is_spent, label
    run.check_named(error)


def fail_at_start(run: FaultedConsumer, label: str, error: BaseException) -> None:
    """A consumer that cannot begin yet says so, and tries again."""
    if run.is_alive:
        run.stop()
        run.join()
    run.seam.fail(label, error)
    run.start()
    assert run.seam.is_spent, label
    run.check_alive()
    run.check_named(error)


def test_each_call_of_the_client_may_fail(
    case: FaultCase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with faulted(case, monkeypatch, tmp_path) as run:
        phases = record(run)
        assert set(case.calls.values()) <= phases.keys()
        for number, (label, phase) in enumerate(sorted(phases.items(), key=_by_phase)):
            error = Exception(f"fault {number} at {label}.")
            if phase == STOP:
                fail_at_stop(run, label, error)
            elif phase == START:
                fail_at_start(run, label, error)
            else:
                fail_in_work(run, label, phase, error)
        if not run.is_alive:
            run.start()
        run.send()
        run.wait_until_all_done()


def _by_phase(item: tuple[str, str]) -> tuple[int, str]:
    label, phase = item
    return PHASES.index(phase), label


def fail_with_all(run: FaultedConsumer, kind: str, errors: list[BaseException]) -> set[str]:
    """Have calls of one kind fail with each of these errors; the classes that end the consumer."""
    # The last is none that could end the consumer a moment after everything was raised.
    errors = [*errors, Exception("the last one")]
    label, refused = run.case.calls[kind], set()
    run.seam.fail(label, *errors)
    if kind == "settle":
        run.send(count=len(errors))
    elif kind == "write":
        run.send("dead", count=len(errors))
    elif kind == "extend":
        run.send("held")
    elif kind == "open" or label not in run.seam.labels["ok"]:
        disconnect(run)
    while True:
        run.wait(lambda: run.seam.is_spent or run.is_ending, "all of them were raised")
        if not run.is_ending:
            break
        run.release.set()
        if run.has_begun:
            run.check_refusal()
            refused.add(run.seam.raised[-1].__name__)
        run.start("again")
        if kind == "extend":
            run.send("held")
    run.release.set()
    lines = "\n".join(run.log.lines)
    unnamed = {type(error).__name__ for error in errors if not is_named(error, lines)}
    assert unnamed <= run.case.answers
    return refused


def share_of(case: FaultCase, kind: str) -> list[BaseException]:
    """The errors that calls of a kind fail with: all of them where something is received, and in
    `make soak`; else those that any client may raise, and some of the library's own, so that the
    other kinds have each of these between them."""
    errors = case.errors()
    others = [each for each in case.calls if each != "receive"]
    if kind == "receive" or SOAK:
        return errors
    first = others.index(kind)
    return [*errors[: len(ANY)], *errors[len(ANY) + first :: len(others)]]


def test_each_exception_of_the_library_may_be_raised(
    case: FaultCase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with faulted(case, monkeypatch, tmp_path) as run:
        run.start("join")
        run.wait_until_all_done()
        run.seam.phase = "ok"
        run.send()
        run.wait_until_all_done()
        run.wait(lambda: not run.consumer.in_hand, "all are settled")
        for kind in case.calls:
            errors = share_of(case, kind)
            names = {type(error).__name__ for error in errors}
            refused = fail_with_all(run, kind, errors)
            assert refused == names & case.refusals.get(kind, frozenset()), kind
        run.send()
        run.wait_until_all_done()


@pytest.mark.soak
def test_each_call_may_fail_with_each_exception(
    case: FaultCase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The product: what a call means decides what an exception of it means, so some of them end the
    consumer; never without a word."""
    with faulted(case, monkeypatch, tmp_path) as run:
        for label, phase in sorted(record(run).items(), key=_by_phase):
            for error in case.errors() if phase in WORK else ():
                while run.is_ending:  # a start meets the fault that an end came before
                    end_and_start(run)
                run.seam.fail(label, error)
                run.case.provoke()
                run.send(phase)
                run.wait(lambda: run.seam.is_spent or run.is_ending, f"{label} has failed")
                run.release.set()
                if type(error).__name__ not in case.answers:
                    run.check_named(error)


def end_and_start(run: FaultedConsumer) -> None:
    if run.error is not None or run.is_alive:
        run.check_end_is_told()
        if run.has_begun:
            run.check_refusal()
    run.start()
