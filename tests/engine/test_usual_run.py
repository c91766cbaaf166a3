"""The engines go the usual way of an attempt without its flow. Here each of them is compared with
the flow itself: for every reply to the claim, every end of the body and every reply to the finish,
it sends the same commands in the same order, gives the body the same grant, and ends the same way.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest

from oncekey import AsyncOnce, NotStarted, Once, Terminal
from oncekey.core.attempt_flow import attempt as attempt_flow
from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    FenceTooLow,
    Finish,
    Look,
    Lost,
    Mismatched,
    Replay,
    Reply,
    Seen,
    Unknown,
)
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Grant,
    Raised,
    Sleep,
    StartedTooLate,
    command_of,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import State, Step
from oncekey.core.state_machine import decide
from oncekey.engine.attempts.attempt_outcomes import pack
from oncekey.engine.clock import SystemClock
from oncekey.engine.jobs import Job
from oncekey.engine.results import conclude
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

START_US = 1_000_000
DEAD = decide(None, Claim(b"i" * 16, b"dead", b"\x01f", 10, 100, 100, False), 1_000).write
assert DEAD is not None
GONE = StoreUnavailable("no answer", ambiguous=True)

CLAIM_REPLIES: tuple[Reply | StoreUnavailable, ...] = (
    Claimed(7, 1, ()),
    Claimed(8, 3, (Step("paid", True, b"", 5),), True),
    Replay(State.SUCCEEDED, pack_value(JSON, "earlier"), 1, 7, 5_000_000),
    Replay(State.FAILED, b"", 1, 7, 5_000_000),
    Mismatched(1),
    Busy(2_000_000),
    Unknown(DEAD, 2_000),
    Done(),
    Lost(),
    Seen(None, 0),
    FenceTooLow(9),
    GONE,
    StoreUnavailable("no connection", ambiguous=False),
)
FINISH_REPLIES: tuple[Reply | StoreUnavailable, ...] = (
    Done(),
    Lost(),
    GONE,
    StoreUnavailable("closed", final=True),
)


class StillClock(SystemClock):
    """A clock that moves only if it is told to, and pauses that end at once."""

    def __init__(self) -> None:
        self.time = START_US

    def now(self) -> int:
        return self.time

    def jitter(self, us: int) -> int:
        return 0


class Script:
    """What the store replies: to the first claim and the first finish as the case says, and to
    whatever follows so that it ends. `late` lets the lease pass while the first claim is made."""

    def __init__(self, claimed: Any, finished: Any, clock: StillClock, *, late: bool) -> None:
        self._first = {Claim: claimed, Finish: finished}
        self._late = late
        self._clock = clock
        self.sent: list[Command] = []

    def __call__(self, command: Command) -> Any:
        self.sent.append(command)
        first = self._first.pop(type(command), None)
        if type(command) is Claim and self._late:
            self._late = False
            self._clock.time += command.lease
        if first is not None:
            return first
        if type(command) is Look:
            return Seen(None, 0)
        return Mismatched(1) if type(command) is Claim else Done()

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        (command,) = commands
        reply = self(command)
        if isinstance(reply, StoreUnavailable):
            raise reply
        return [reply]


class ScriptedStore(MemoryStore):
    script: Script

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.script.apply(commands)


class AwaitedStore(AsyncMemoryStore):
    """Its `apply` is its own, so it is awaited."""

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.memory.apply(commands)


def returns_a_dict() -> Any:
    return {"charge": "ch_1"}


def returns_text() -> Any:
    return "charged"


def returns_what_no_codec_takes() -> Any:
    return object


def raises() -> Any:
    raise ValueError("declined")


def raises_not_started() -> Any:
    raise NotStarted("nothing happened")


def raises_terminal() -> Any:
    raise Terminal("declined for good")


BODIES = (
    returns_a_dict,
    returns_text,
    returns_what_no_codec_takes,
    raises,
    raises_not_started,
    raises_terminal,
)

# The commands that were sent, the grants of bodies that began, the events, and what the caller got.
Course = tuple[list[Command], list[Grant], list[EventKind], Any]


def ending(call: Callable[[], Any]) -> Any:
    """What a caller gets: the result, or the type and the text of the error."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


# --- the flow, driven by hand ---------------------------------------------------------------------


def by_the_flow(job: Job, script: Script, clock: StillClock, body: Callable[[], Any]) -> Course:
    """Drive the flow as core/attempt_flow.py says, effect by effect. A deferred write is sent
    last: by an engine when it is closed."""
    flow = attempt_flow(job.claim, job.policy.times, False, job.arguments)
    grants: list[Grant] = []
    begun: list[Grant] = []
    result: Any = None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            return script.sent, begun, *_ended(job, script, grants, stop.value)
        if isinstance(effect, Sleep):
            result = clock.now()
        elif isinstance(effect, Grant):
            grants.append(effect)
            if clock.now() > effect.deadline - effect.lease // 3:
                result = StartedTooLate(b"another owner")
                continue
            begun.append(effect)
            try:
                result = pack(job.codec, job.policy, body(), effect.deadline)
            except Exception as error:
                result = Raised(error, effect.deadline)
        else:
            command = command_of(effect)
            assert command is not None
            sent_at = clock.now()
            result = CommandResult(script(command), sent_at, clock.now())


def _ended(
    job: Job, script: Script, grants: Sequence[Grant], outcome: AttemptOutcome
) -> tuple[list[EventKind], Any]:
    """The events of an outcome, and what its caller gets."""
    kinds = [EventKind.TAKEOVER if grants[0].taken_over else EventKind.CLAIMED] if grants else []
    kinds.append(outcome.kind)
    if outcome.unrecorded:
        kinds.append(EventKind.UNRECORDED)
    if outcome.kind is EventKind.FINISHED and not outcome.kept:
        kinds.append(EventKind.TOMBSTONE)
    if outcome.deferred is not None:
        script(outcome.deferred)
    return kinds, ending(lambda: conclude(job, outcome))


# --- the engines ----------------------------------------------------------------------------------


def by_threads(job: Job, scripted: Any, body: Callable[[], Any], listens: bool) -> Course:
    clock, script, store = scripted
    begun: list[Grant] = []
    kinds: list[EventKind] = []

    def run(attempt: Any) -> Any:
        begun.append(attempt._grant)
        return body()

    with Once(store, clock=clock) as once:
        if listens:
            once.subscribe(lambda event: kinds.append(event.kind))
        ended = ending(lambda: once._runner.run(job, run))
    return script.sent, begun, kinds, ended


def by_tasks(store_type: type[AsyncMemoryStore]) -> Callable[..., Course]:
    def run_all(job: Job, scripted: Any, body: Callable[[], Any], listens: bool) -> Course:
        clock, script, store = scripted
        begun: list[Grant] = []
        kinds: list[EventKind] = []

        async def run(attempt: Any) -> Any:
            begun.append(attempt._grant)
            return body()

        async def main() -> Any:
            async with AsyncOnce(store_type(store), clock=clock) as once:
                if listens:
                    once.subscribe(lambda event: kinds.append(event.kind))
                return await once._runner.run(job, run)

        ended = ending(lambda: asyncio.run(main()))
        return script.sent, begun, kinds, ended

    return run_all


ENGINES = {
    "threads": by_threads,
    "tasks": by_tasks(AsyncMemoryStore),
    "tasks that await the store": by_tasks(AwaitedStore),
}


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("arguments", [b"", b"stored first"], ids=["", "with arguments"])
@pytest.mark.parametrize("listens", [False, True], ids=["", "listened to"])
@pytest.mark.parametrize("engine", ENGINES)
def test_i1_an_engine_sends_what_the_flow_yields(
    engine: str, arguments: bytes, late: bool, listens: bool
) -> None:
    makers = itertools.product(CLAIM_REPLIES, FINISH_REPLIES, BODIES)
    for claimed, finished, body in makers:
        job = _job(arguments)

        def scripted(claimed: Any = claimed, finished: Any = finished) -> Any:
            clock = StillClock()
            store = ScriptedStore()
            store.script = Script(claimed, finished, clock, late=late)
            return clock, store.script, store

        clock, script, _ = scripted()
        expected = by_the_flow(job, script, clock, body)
        got = ENGINES[engine](job, scripted(), body, listens)
        case = f"{claimed} {body.__name__} {finished}"
        assert _plain(got[0]) == _plain(expected[0]), case
        assert (got[1], got[3]) == (expected[1], expected[3]), case
        assert got[2] == (expected[2] if listens else []), case


def test_every_reply_is_tried() -> None:
    """A new kind of reply belongs into the table above."""
    assert {type(reply) for reply in CLAIM_REPLIES} == {*get_args(Reply), StoreUnavailable}


def _plain(commands: Sequence[Command]) -> list[tuple[Any, ...]]:
    """With their types: two commands of different types with the same fields are equal."""
    return [(type(command), *command) for command in commands]


def _job(arguments: bytes) -> Job:
    with Once("memory://", clock=StillClock()) as once:
        job = once._jobs.make("charge", "order-1", "acct_1", {"cents": 5}, None, {})
    return job.with_arguments(arguments) if arguments else job
