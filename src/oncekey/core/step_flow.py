"""One step of a body, as a generator that asks for what it wants (see attempt_flow.py).

Rules: what is done is skipped. Else the intent is written before the call and the result after it,
so that a crash in between leaves the child key and the request that may have arrived. A step met
unfinished is called again with both; one with a probe asks the other side first, and believes a
"no" only when the last call has had `probe_grace` to arrive, by the store's clock.

Pure, and never calls user code. Must not know threads, asyncio or any store.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from oncekey.core.commands import Done, Look, Lost, SaveStep, Seen
from oncekey.core.effects import (
    ApplyCommand,
    CommandResult,
    Effect,
    Grant,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
    StepOutcome,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Step

UNSAVED: Final = -1  # the time of a step that is not known to be on record
RETRY_FIRST_US: Final = 20_000
RETRY_MAX_US: Final = 1_000_000
_SETTLE_SLEEP_MIN_US: Final = 1_000

Asking = Generator[Effect, object, StepOutcome | None]


class StepPlan(NamedTuple):
    """What to do in a step: its name, its intent as bytes, whether the other side can be asked
    and how long a call may be under way (microseconds)."""

    name: str
    intent: bytes
    probed: bool = False
    probe_grace: int = 0


def step(
    grant: Grant, deadline: int, plan: StepPlan, saved: Step | None
) -> Generator[Effect, object, StepOutcome]:
    """`deadline` is the owner's at this moment; heartbeats have moved it since the grant."""
    if saved is not None and saved.done:
        return StepOutcome(saved.body)
    intended = SaveStep(grant.id, grant.owner, grant.fence, plan.name, False, plan.intent)
    if saved is not None and saved.at == UNSAVED:
        known = yield from _known(grant, deadline, plan, intended)
        if known is not None:
            return known
    if saved is not None and plan.probed:
        found = yield from _probe(grant, deadline, plan)
        if isinstance(found, StepOutcome):
            return found
        deadline = found
    # Also before it is called again: `probe_grace` runs from the last call, and who was overtaken
    # meanwhile is told so here and calls nothing.
    refused = yield from save(intended, deadline)
    if refused is not None:
        return refused
    result = yield RunStep(plan.name)
    verdict = yield from _record(grant, plan.name, result)
    return verdict._replace(called=True)


def _known(grant: Grant, deadline: int, plan: StepPlan, intended: SaveStep) -> Asking:
    """A step whose record is in doubt: its result, if that is there after all; else its intent is
    written down, so that there is a time to count from."""
    seen = yield from _look(grant, deadline)
    if isinstance(seen, StepOutcome):
        return seen
    for step in seen.record.steps if seen.record is not None else ():
        if step.name == plan.name and step.done:
            return StepOutcome(step.body)
    return (yield from save(intended, deadline))


def _record(grant: Grant, name: str, result: object) -> Generator[Effect, object, StepOutcome]:
    if isinstance(result, Raised):
        return StepOutcome(error=result.error)
    assert isinstance(result, Returned)
    done = SaveStep(grant.id, grant.owner, grant.fence, name, True, result.body)
    refused = yield from save(done, result.deadline)
    if refused is not None:
        return refused
    return StepOutcome(result.body, result.raw, result.kept)


def _probe(
    grant: Grant, deadline: int, plan: StepPlan
) -> Generator[Effect, object, StepOutcome | int]:
    """What the other side says happened; the owner's deadline where it is certain that nothing
    did."""
    while True:
        # Looked at before asking: a call that arrives after the question was asked is then one
        # that had less than `probe_grace` when we looked.
        seen = yield from _look(grant, deadline)
        if isinstance(seen, StepOutcome):
            return seen
        steps = seen.record.steps if seen.record is not None else ()
        at = max((step.at for step in steps if step.name == plan.name), default=0)
        left = at + plan.probe_grace - seen.now
        result = yield Probe(plan.name)
        if not isinstance(result, ProbeFoundNothing):
            return (yield from _record(grant, plan.name, result))
        deadline = result.deadline
        if left <= 0:
            return deadline
        yield Sleep(max(left, _SETTLE_SLEEP_MIN_US))


def _look(grant: Grant, deadline: int) -> Generator[Effect, object, Seen | StepOutcome]:
    pause = RETRY_FIRST_US
    while True:
        answer = yield ApplyCommand(Look(grant.id))
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Seen):
            return answer.reply
        assert isinstance(answer.reply, StoreUnavailable)
        if answer.at >= deadline or answer.reply.final:
            return StepOutcome(error=answer.reply, unrecorded=True)
        yield Sleep(min(pause, deadline - answer.at))
        pause = min(pause * 2, RETRY_MAX_US)


def save(command: SaveStep, deadline: int) -> Asking:
    """None once the step is saved; what to tell the body where it could not be."""
    pause = RETRY_FIRST_US
    while True:
        answer = yield ApplyCommand(command)
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Done):
            return None
        if isinstance(answer.reply, Lost):
            return StepOutcome(lost=True)
        assert isinstance(answer.reply, StoreUnavailable)
        if answer.at >= deadline or answer.reply.final:
            return StepOutcome(error=answer.reply, unrecorded=True)
        yield Sleep(min(pause, deadline - answer.at))
        pause = min(pause * 2, RETRY_MAX_US)
