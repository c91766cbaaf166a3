"""One step of a body, as a generator that yields effects (see effects.py).

1.  A step whose result is stored is not run again; its stored result is returned.
2.  Otherwise the intent is stored before the call and the result after it. A crash in between
    leaves the child key and the request that may have arrived.
3.  A step that has an intent and no result is called again with the stored child key and request.
4.  If such a step has a probe, the probe is called first. It returns what has happened, and the
    step is not called. It finds nothing: that is believed only once the last call was stored
    `probe_grace` ago by the store's clock, for until then the call may still arrive.
5.  The intent is stored again before every further call: `probe_grace` counts from the last call,
    and an owner that was overtaken meanwhile learns it there and calls nothing.

The bytes of intents and results are in step_format.py. Pure, and never calls user code. Must not
know threads, asyncio or any store.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from oncekey.core.commands import Done, Look, Lost, SaveStep, Seen
from oncekey.core.effects import (
    CommandResult,
    Effect,
    Grant,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Step

UNSAVED: Final = -1  # the time of a step whose intent may not be stored
RETRY_FIRST_US: Final = 20_000
RETRY_MAX_US: Final = 1_000_000
_GRACE_SLEEP_MIN_US: Final = 1_000


class StepOutcome(NamedTuple):
    """How a step ended: its stored result, or the error to raise in the body.

    lost        the attempt does not hold its key any more
    unrecorded  `error` is the store's: what it has of the step is not known
    called      the step's function was called, so its intent is stored
    exact       reading `body` gives a value that is equal to `raw`
    """

    body: bytes = b""
    raw: object = None
    kept: bool = True
    error: BaseException | None = None
    lost: bool = False
    unrecorded: bool = False
    called: bool = False
    exact: bool = False


def step(
    grant: Grant,
    deadline: int,
    name: str,
    intent: bytes,
    saved: Step | None,
    probe_grace: int | None = None,
) -> Generator[Effect, object, StepOutcome]:
    """Run the step `name` under `grant`, or return its stored result.

    `deadline` is the owner's at this moment, which heartbeats have moved since the grant. `saved`
    is what is stored of the step. `probe_grace` is None for a step without a probe.
    """
    if saved is not None and saved.done:
        return StepOutcome(saved.body)
    intended = SaveStep(grant.id, grant.owner, grant.fence, name, False, intent)
    if saved is not None and saved.at == UNSAVED:
        ended = yield from _save_uncertain(grant, deadline, intended)
        if ended is not None:
            return ended
    if saved is not None and probe_grace is not None:
        found = yield from _probe(grant, deadline, name, probe_grace)
        if isinstance(found, StepOutcome):
            return found
        deadline = found
    refused = yield from save(intended, deadline)
    if refused is not None:
        return refused
    result = yield RunStep(name)
    outcome = yield from _save_result(grant, name, result)
    return outcome._replace(called=True)


def _save_uncertain(
    grant: Grant, deadline: int, intended: SaveStep
) -> Generator[Effect, object, StepOutcome | None]:
    """Look up a step whose last write may have been lost: return its outcome if its result is
    stored after all. Else store its intent, so that there is a time to count from."""
    seen = yield from _look(grant, deadline)
    if isinstance(seen, StepOutcome):
        return seen
    for stored in seen.record.steps if seen.record is not None else ():
        if stored.name == intended.name and stored.done:
            return StepOutcome(stored.body)
    return (yield from save(intended, deadline))


def _save_result(grant: Grant, name: str, result: object) -> Generator[Effect, object, StepOutcome]:
    if isinstance(result, Raised):
        return StepOutcome(error=result.error)
    assert isinstance(result, Returned)
    done = SaveStep(grant.id, grant.owner, grant.fence, name, True, result.body)
    refused = yield from save(done, result.deadline)
    if refused is not None:
        return refused
    return StepOutcome(result.body, result.raw, result.kept, exact=result.exact)


def _probe(
    grant: Grant, deadline: int, name: str, grace: int
) -> Generator[Effect, object, StepOutcome | int]:
    """Probe until the answer is certain: return the outcome if the step has happened, or the
    owner's new deadline if it has not."""
    while True:
        # Look before probing: a call that arrives after the probe has answered is then one whose
        # grace was not over when we looked.
        seen = yield from _look(grant, deadline)
        if isinstance(seen, StepOutcome):
            return seen
        steps = seen.record.steps if seen.record is not None else ()
        called_at = max((stored.at for stored in steps if stored.name == name), default=0)
        left = called_at + grace - seen.now
        result = yield Probe(name)
        if not isinstance(result, ProbeFoundNothing):
            return (yield from _save_result(grant, name, result))
        deadline = result.deadline
        if left <= 0:
            return deadline
        yield Sleep(max(left, _GRACE_SLEEP_MIN_US))


def _look(grant: Grant, deadline: int) -> Generator[Effect, object, Seen | StepOutcome]:
    pause = RETRY_FIRST_US
    while True:
        result = yield Look(grant.id)
        assert isinstance(result, CommandResult)
        if isinstance(result.reply, Seen):
            return result.reply
        assert isinstance(result.reply, StoreUnavailable)
        if result.at >= deadline or result.reply.final:
            return StepOutcome(error=result.reply, unrecorded=True)
        yield Sleep(min(pause, deadline - result.at))
        pause = min(pause * 2, RETRY_MAX_US)


def save(command: SaveStep, deadline: int) -> Generator[Effect, object, StepOutcome | None]:
    """Store an intent or a result, and try again until `deadline` while the store is unavailable.
    Returns None once it is stored, else the outcome to end the step with."""
    pause = RETRY_FIRST_US
    while True:
        result = yield command
        assert isinstance(result, CommandResult)
        if isinstance(result.reply, Done):
            return None
        if isinstance(result.reply, Lost):
            return StepOutcome(lost=True)
        assert isinstance(result.reply, StoreUnavailable)
        if result.at >= deadline or result.reply.final:
            return StepOutcome(error=result.reply, unrecorded=True)
        yield Sleep(min(pause, deadline - result.at))
        pause = min(pause * 2, RETRY_MAX_US)
