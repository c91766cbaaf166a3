"""What one process can do next, at a given time.

A sleep has no length here: a sleeper may wake at any time, which covers every jitter and every
pause of its host. Waking and sending the next command are one move, since nothing between them can
be seen from outside.

Owns the moves of a process. What the store replies to a command, and how that changes the ledger,
is in world.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.descriptions import describe_command, describe_outcome, describe_reply
from tests.support.explorer.generator_states import GeneratorState, GeneratorStates
from tests.support.explorer.ledger import ENDED
from tests.support.explorer.operator import operator
from tests.support.explorer.process import FlowState, HeldClaim, Interned, Message, Phase, Process
from tests.support.explorer.scenario import Actor, BodyEnding

from oncekey.core.commands import Done, Finish, Reply
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    DeadlineExtended,
    Grant,
    Overtaken,
    Raised,
    Recover,
    Recovered,
    Returned,
    Sleep,
    StartedTooLate,
    command_of,
)
from oncekey.core.errors import NotStarted, StoreUnavailable, Terminal
from oncekey.core.late_owner import starts_too_late
from oncekey.core.record import State

NO_ANSWER: Final = StoreUnavailable("no answer came")
ERRORS: Final[dict[BodyEnding, BaseException]] = {
    BodyEnding.RAISED: RuntimeError("it raised"),
    BodyEnding.NOT_STARTED: NotStarted("nothing happened"),
    BodyEnding.TERMINAL: Terminal("declined"),
    BodyEnding.INTERRUPTED: KeyboardInterrupt("stopped"),
}
FOUND: Final = Recovered(State.SUCCEEDED, b"recovered", "recover= found it")
FREE: Final = Recovered(State.ABSENT, b"", "recover= found nothing")
DECLINED: Final = Recovered(State.FAILED, b"declined", "decided that it failed")


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One move: as text, its kind, and the process after it.

    applies   the store is to decide this command; `after` is the process before the reply
    truth     possible only if the generation had a side effect (True) or had none (False)
    """

    words: str
    kind: str
    after: Process
    applies: Message | None = None
    beating: bool = False
    leaves: tuple[Message, ...] = ()
    losses: int = 0
    crashes: int = 0
    acts: bool = False
    truth: bool | None = None
    acked: Finish | None = None
    outcome: AttemptOutcome | None = None
    raised: Exception | None = None


class Moves:
    """The moves of processes, computed once per process and time."""

    def __init__(self, code: CodeUnderTest) -> None:
        self._code = code
        self.generators = GeneratorStates()
        self.interned = Interned()
        self._known: dict[tuple[Process, int], list[Move]] = {}

    def start(self, actor: Actor) -> Process:
        if actor.operator:
            begun = self.generators.begin(lambda: operator(actor.name))
            return self.interned.process(actor, FlowState(begun))
        claim, times, recoverable = actor.claim, actor.times, actor.recoverable
        state = self.generators.begin(lambda: self._code.attempt(claim, times, recoverable))
        return self.interned.process(actor, FlowState(state))

    def of(self, process: Process, now: int) -> list[Move]:
        known = self._known.get((process, now))
        if known is None:
            known = self._known[process, now] = self._moves(process, now)
        return known

    def _moves(self, process: Process, now: int) -> list[Move]:
        if process.main is None:
            return []
        found = [self._crash(process)]
        if process.grant is not None:
            found += self._body(process, now)
        else:
            found += self._exchange(process, now, beating=False)
        if process.beat is not None:
            found += self._exchange(process, now, beating=True)
        return found

    # --- calls --------------------------------------------------------------------------------

    def _exchange(self, process: Process, now: int, *, beating: bool) -> list[Move]:
        flow = process.flow(beating)
        name = process.actor.name + ("'s heartbeat" if beating else "")
        if flow.phase is Phase.READY:
            if isinstance(flow.state.effect, Recover):
                return self._recover(process, flow)
            if beating and not process.beats:
                return []
            sending = self._send(process, flow, now, beating, name)
            if not process.actor.quick or sending.kind != "send":
                return [sending]
            message = self.interned.message(process.actor, sending.after.flow(beating))
            return [replace(sending, applies=message, beating=beating)]
        message = self.interned.message(process.actor, flow)
        what = describe_command(message.command)
        if flow.phase is Phase.SENT:
            words = f"{name} gets no reply to its {what}, which is late"
            late = CommandResult(NO_ANSWER, flow.sent_at, now)
            return [
                Move("", "", process, applies=message, beating=beating),
                self._replied(
                    process, flow, late, beating, words,
                    leaves=(message,), losses=1,
                ),
            ]  # fmt: skip
        assert flow.reply is not None
        reply = CommandResult(flow.reply, flow.sent_at, now)
        unheard = CommandResult(NO_ANSWER, flow.sent_at, now)
        command = message.command
        acked = None
        if isinstance(command, Finish) and command.state in ENDED and type(flow.reply) is Done:
            acked = command
        learns = f"{name} learns: {describe_reply(flow.reply)}"
        return [
            self._replied(process, flow, reply, beating, learns, acked=acked),
            self._replied(
                process, flow, unheard, beating, f"the reply to {name}'s {what} is lost", losses=1
            ),
        ]

    def _send(self, process: Process, flow: FlowState, now: int, beating: bool, name: str) -> Move:
        """Wake up if asleep, and send the next command."""
        state = flow.state
        if isinstance(state.effect, Sleep):
            state = self.generators.advance(state, now)
        command = command_of(state.effect)
        if command is None:
            return self._arrive(process, state, beating, f"{name} wakes", "wake")
        after = self.interned.with_flow(process, beating, FlowState(state, Phase.SENT, now))
        if beating:
            after = self.interned.process(
                after.actor, after.main, after.beat, after.held, after.acted, after.beats - 1
            )
        return Move(f"{name} sends {describe_command(command)}", "send", after)

    def _replied(
        self,
        process: Process,
        flow: FlowState,
        answer: CommandResult,
        beating: bool,
        words: str,
        *,
        leaves: tuple[Message, ...] = (),
        losses: int = 0,
        acked: Finish | None = None,
    ) -> Move:
        kind = "reply"
        if losses:
            kind = "late" if leaves else "lost ack"
            if not beating:
                # It does not know whether its finish was applied, so it believes in no claim.
                process = self.interned.process(
                    process.actor, process.main, process.beat, None, process.acted, process.beats
                )
        state = self.generators.advance(flow.state, answer)
        if isinstance(state.effect, Grant) and starts_too_late(state.effect, answer.at):
            words, kind = f"{words}, too late to start", "late start"
            state = self.generators.advance(state, StartedTooLate(process.actor.spare))
        return self._arrive(
            process, state, beating, words, kind, leaves=leaves, losses=losses, acked=acked
        )

    def applied(self, move: Move, reply: Reply) -> Process:
        """The process once the store has decided its command and the reply is on its way."""
        process, beating = move.after, move.beating
        flow = process.flow(beating)._replace(phase=Phase.APPLIED, reply=reply)
        if not beating and process.held is not None:  # its own finish or release was decided
            process = self.interned.process(
                process.actor, process.main, process.beat, None, process.acted, process.beats
            )
        return self.interned.with_flow(process, beating, flow)

    def delivery(self, process: Process, now: int, *, beating: bool) -> Move:
        """The process gets the reply that is on its way."""
        return self._exchange(process, now, beating=beating)[0]

    # --- what a reply leads to ----------------------------------------------------------------

    def _arrive(
        self,
        process: Process,
        state: GeneratorState,
        beating: bool,
        words: str,
        kind: str,
        *,
        leaves: tuple[Message, ...] = (),
        losses: int = 0,
        truth: bool | None = None,
        acked: Finish | None = None,
    ) -> Move:
        """The process after its generator has reached `state`."""
        outcome = None
        raised = state.raised
        if beating:
            after, state = self._arrive_heartbeat(process, state)
            if after.held is None:
                kind, words = "heartbeat ends", f"{words}, and stops: the key may be lost"
        elif state.effect is None:
            after = self.interned.gone(process.actor)
            if isinstance(state.value, AttemptOutcome):
                outcome = state.value
                words = f"{words}. {process.actor.name} returns {describe_outcome(outcome)}"
                kind = f"outcome {outcome.kind.value}"
        elif isinstance(state.effect, Grant):
            grant = state.effect
            beat = self.generators.begin(lambda: self._code.heartbeat(grant))
            held = HeldClaim(grant.owner, grant.fence, grant.deadline)
            words = f"{words}, and holds it until {grant.deadline} by its own clock"
            after = self.interned.process(
                process.actor, FlowState(state), FlowState(beat), held, False, process.actor.beats
            )
        else:
            after = self.interned.with_flow(process, beating, FlowState(state))
        return Move(
            words, kind, after, leaves=leaves, losses=losses, truth=truth, acked=acked,
            outcome=outcome, raised=raised or state.raised,
        )  # fmt: skip

    def _arrive_heartbeat(
        self, process: Process, state: GeneratorState
    ) -> tuple[Process, GeneratorState]:
        """Move the deadline that the owner believes in; without a heartbeat it believes in none."""
        held = process.held
        while isinstance(state.effect, DeadlineExtended):
            if held is not None:
                held = held._replace(deadline=max(held.deadline, state.effect.deadline))
            state = self.generators.advance(state, None)
        if state.effect is None:
            return self.interned.process(
                process.actor, process.main, None, None, process.acted
            ), state
        after = self.interned.process(
            process.actor, process.main, FlowState(state), held, process.acted, process.beats
        )
        return after, state

    # --- the body -----------------------------------------------------------------------------

    def _body(self, process: Process, now: int) -> list[Move]:
        name = process.actor.name
        found = []
        if process.held is not None and not process.acted and now < process.held.deadline:
            acting = self.interned.process(
                process.actor, process.main, process.beat, process.held, True, process.beats
            )
            found.append(Move(f"{name} ACTS on the outside world", "effect", acting, acts=True))
        endings = [e for e in process.actor.endings if _can_end(e, process.acted)]
        if process.held is None or (not process.acted and now >= process.held.deadline):
            endings = [BodyEnding.RAISED]  # attempt.check() raises
            if process.acted and BodyEnding.RETURNED in process.actor.endings:
                endings.append(BodyEnding.RETURNED)  # or it never called check()
        return found + [self._end(process, ending) for ending in endings]

    def _end(self, process: Process, ending: BodyEnding) -> Move:
        name, grant, main = process.actor.name, process.grant, process.main
        assert grant is not None
        assert main is not None
        result: Returned | Raised | Overtaken
        if process.held is None and ending is BodyEnding.RAISED:
            result = Overtaken()
        elif process.held is None:
            result = Returned(f"{name}:{grant.fence}".encode(), grant.deadline)
        elif ending is BodyEnding.RETURNED:
            result = Returned(f"{name}:{grant.fence}".encode(), process.held.deadline)
        else:
            result = Raised(ERRORS[ending], process.held.deadline)
        leaves = self._in_flight(process)
        state = self.generators.advance(main.state, result)
        quiet = self.interned.process(process.actor, main, None, process.held)
        kind = "overtaken" if isinstance(result, Overtaken) else f"body {ending.value}"
        return self._arrive(
            quiet, state, False, f"{name}'s body {ending.value}", kind, leaves=leaves
        )

    def _recover(self, process: Process, flow: FlowState) -> list[Move]:
        """`recover` tells the truth about the side effect, or that it cannot tell. So does an
        operator, who may also decide that it failed, whatever has happened."""
        name = process.actor.name
        found = []
        answers: list[tuple[Recovered | None, bool | None]]
        answers = [(FOUND, True), (FREE, False), (None, None)]
        if process.actor.operator:
            answers.append((DECLINED, None))
        for answer, truth in answers:
            state = self.generators.advance(flow.state, answer)
            words = f"{name}'s recover says {answer.state.name if answer else 'nothing'}"
            found.append(self._arrive(process, state, False, words, "recover", truth=truth))
        return found

    def _crash(self, process: Process) -> Move:
        return Move(
            f"{process.actor.name} CRASHES", "crash", self.interned.gone(process.actor), crashes=1,
            leaves=self._in_flight(process),
        )  # fmt: skip

    def _in_flight(self, process: Process) -> tuple[Message, ...]:
        """Its commands that were sent and not applied, which may still arrive."""
        flows = (process.main, process.beat)
        sent = (flow for flow in flows if flow is not None and flow.phase is Phase.SENT)
        return tuple(self.interned.message(process.actor, flow) for flow in sent)


def _can_end(ending: BodyEnding, acted: bool) -> bool:
    if ending is BodyEnding.RETURNED:
        return acted
    return not acted or ending is not BodyEnding.NOT_STARTED
