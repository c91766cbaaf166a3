"""What one process can do next, at a given time.

Sleeping has no length here: a sleeper may wake at any time, which covers every jitter and every
pause of its host. Waking and sending the next command are one move, since between them nothing
can be seen from outside.

Owns the moves of a process. What the store says to a command, and what it does to the ledger, is
the world's (world.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.support.explorer.kit import Kit
from tests.support.explorer.ledger import ENDED
from tests.support.explorer.local import Local, Locals
from tests.support.explorer.process import Hold, Line, Message, Phase, Pool, Proc
from tests.support.explorer.scenario import Actor, Ending
from tests.support.explorer.words import command_words, reply_words, verdict_words

from oncekey.core.commands import Done, Finish, Reply
from oncekey.core.effects import (
    ApplyCommand,
    AttemptOutcome,
    CommandResult,
    DeadlineExtended,
    Overtaken,
    Raised,
    Recover,
    Recovered,
    Returned,
    RunBody,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import NotStarted, StoreUnavailable, Terminal
from oncekey.core.late_owner import starts_too_late
from oncekey.core.record import State

NO_ANSWER: Final = StoreUnavailable("no answer came")
ERRORS: Final[dict[Ending, BaseException]] = {
    Ending.RAISED: RuntimeError("it broke"),
    Ending.NOT_STARTED: NotStarted("nothing happened"),
    Ending.TERMINAL: Terminal("declined"),
    Ending.INTERRUPTED: KeyboardInterrupt("stopped"),
}
FOUND: Final = Recovered(State.SUCCEEDED, b"recovered", "recover= found it")
FREE: Final = Recovered(State.ABSENT, b"", "recover= found nothing")


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One move: in words, its kind, and the process after it.

    applies   the store is to decide this command; `after` is the process before the reply
    truth     only if the generation had an effect (True) or had none (False)
    """

    words: str
    kind: str
    after: Proc
    applies: Message | None = None
    beating: bool = False
    leaves: tuple[Message, ...] = ()
    losses: int = 0
    crashes: int = 0
    acts: bool = False
    truth: bool | None = None
    acked: Finish | None = None
    verdict: AttemptOutcome | None = None
    broke: Exception | None = None


class Options:
    """The moves of processes, each worked out once per process and time."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.locals = Locals()
        self.pool = Pool()
        self._known: dict[tuple[Proc, int], list[Option]] = {}

    def start(self, actor: Actor) -> Proc:
        local = self.locals.begin(lambda: self._kit.attempt(actor.task))
        return self.pool.proc(actor, Line(local))

    def of(self, proc: Proc, now: int) -> list[Option]:
        known = self._known.get((proc, now))
        if known is None:
            known = self._known[proc, now] = self._work_out(proc, now)
        return known

    def _work_out(self, proc: Proc, now: int) -> list[Option]:
        if proc.main is None:
            return []
        found = [self._crash(proc)]
        if proc.grant is not None:
            found += self._body(proc, now)
        else:
            found += self._exchange(proc, now, beating=False)
        if proc.beat is not None:
            found += self._exchange(proc, now, beating=True)
        return found

    # --- calls --------------------------------------------------------------------------------

    def _exchange(self, proc: Proc, now: int, *, beating: bool) -> list[Option]:
        line = proc.line(beating)
        name = proc.actor.name + ("'s heartbeat" if beating else "")
        if line.phase is Phase.READY:
            if isinstance(line.local.ask, Recover):
                return self._recover(proc, line)
            if beating and not proc.beats:
                return []
            sending = self._send(proc, line, now, beating, name)
            if not proc.actor.quick or sending.kind != "send":
                return [sending]
            message = self.pool.message(proc.actor, sending.after.line(beating))
            return [replace(sending, applies=message, beating=beating)]
        message = self.pool.message(proc.actor, line)
        what = command_words(message.command)
        if line.phase is Phase.SENT:
            late = CommandResult(NO_ANSWER, line.sent_at, now)
            return [
                Option("", "", proc, applies=message, beating=beating),
                self._answered(
                    proc, line, late, beating, f"{name} hears nothing of its {what}, which is late",
                    leaves=(message,), losses=1,
                ),
            ]  # fmt: skip
        assert line.reply is not None
        said = CommandResult(line.reply, line.sent_at, now)
        unheard = CommandResult(NO_ANSWER, line.sent_at, now)
        command = message.command
        acked = None
        if isinstance(command, Finish) and command.state in ENDED and type(line.reply) is Done:
            acked = command
        learns = f"{name} learns: {reply_words(line.reply)}"
        return [
            self._answered(proc, line, said, beating, learns, acked=acked),
            self._answered(
                proc, line, unheard, beating, f"the reply to {name}'s {what} is lost", losses=1
            ),
        ]

    def _send(self, proc: Proc, line: Line, now: int, beating: bool, name: str) -> Option:
        """Wake if asleep, and send what is asked for."""
        local = line.local
        if isinstance(local.ask, Sleep):
            local = self.locals.advance(local, now)
        if not isinstance(local.ask, ApplyCommand):
            return self._settle(proc, local, beating, f"{name} wakes", "wake")
        after = self.pool.with_line(proc, beating, Line(local, Phase.SENT, now))
        if beating:
            after = self.pool.proc(
                after.actor, after.main, after.beat, after.hold, after.acted, after.beats - 1
            )
        return Option(f"{name} sends {command_words(local.ask.command)}", "send", after)

    def _answered(
        self,
        proc: Proc,
        line: Line,
        answer: CommandResult,
        beating: bool,
        words: str,
        *,
        leaves: tuple[Message, ...] = (),
        losses: int = 0,
        acked: Finish | None = None,
    ) -> Option:
        kind = "answer"
        if losses:
            kind = "late" if leaves else "lost ack"
            if not beating:
                # It no longer knows whether its closing was applied, so it believes nothing.
                proc = self.pool.proc(
                    proc.actor, proc.main, proc.beat, None, proc.acted, proc.beats
                )
        local = self.locals.advance(line.local, answer)
        if isinstance(local.ask, RunBody) and starts_too_late(local.ask.grant, answer.at):
            words, kind = f"{words}, too late to begin", "late start"
            local = self.locals.advance(local, StartedTooLate(proc.actor.spare))
        return self._settle(
            proc, local, beating, words, kind, leaves=leaves, losses=losses, acked=acked
        )

    def applied(self, option: Option, reply: Reply) -> Proc:
        """The process once the store has decided its command and the reply is on its way."""
        proc, beating = option.after, option.beating
        line = proc.line(beating)._replace(phase=Phase.APPLIED, reply=reply)
        if not beating and proc.hold is not None:  # its own closing was decided
            proc = self.pool.proc(proc.actor, proc.main, proc.beat, None, proc.acted, proc.beats)
        return self.pool.with_line(proc, beating, line)

    def delivery(self, proc: Proc, now: int, *, beating: bool) -> Option:
        """The process hearing the reply that is on its way."""
        return self._exchange(proc, now, beating=beating)[0]

    # --- what an answer leads to --------------------------------------------------------------

    def _settle(
        self,
        proc: Proc,
        local: Local,
        beating: bool,
        words: str,
        kind: str,
        *,
        leaves: tuple[Message, ...] = (),
        losses: int = 0,
        truth: bool | None = None,
        acked: Finish | None = None,
    ) -> Option:
        """The process after its generator came to `local`."""
        verdict = None
        broke = local.broke
        if beating:
            after, local = self._settle_beat(proc, local)
            if after.hold is None:
                kind, words = "heartbeat ends", f"{words}, and stops: the key may be lost"
        elif local.ask is None:
            after = self.pool.gone(proc.actor)
            if isinstance(local.value, AttemptOutcome):
                verdict = local.value
                words = f"{words}. {proc.actor.name} returns {verdict_words(verdict)}"
                kind = f"verdict {verdict.kind.value}"
        elif isinstance(local.ask, RunBody):
            grant = local.ask.grant
            beat = self.locals.begin(lambda: self._kit.heartbeat(grant))
            hold = Hold(grant.owner, grant.fence, grant.deadline)
            words = f"{words}, and holds it until {grant.deadline} by its own clock"
            after = self.pool.proc(
                proc.actor, Line(local), Line(beat), hold, False, proc.actor.beats
            )
        else:
            after = self.pool.with_line(proc, beating, Line(local))
        return Option(
            words, kind, after, leaves=leaves, losses=losses, truth=truth, acked=acked,
            verdict=verdict, broke=broke or local.broke,
        )  # fmt: skip

    def _settle_beat(self, proc: Proc, local: Local) -> tuple[Proc, Local]:
        """Extend the belief by what the heartbeat reached; without a heartbeat there is none."""
        hold = proc.hold
        while isinstance(local.ask, DeadlineExtended):
            if hold is not None:
                hold = hold._replace(deadline=max(hold.deadline, local.ask.deadline))
            local = self.locals.advance(local, None)
        if local.ask is None:
            return self.pool.proc(proc.actor, proc.main, None, None, proc.acted), local
        after = self.pool.proc(proc.actor, proc.main, Line(local), hold, proc.acted, proc.beats)
        return after, local

    # --- the body -----------------------------------------------------------------------------

    def _body(self, proc: Proc, now: int) -> list[Option]:
        name = proc.actor.name
        found = []
        if proc.hold is not None and not proc.acted and now < proc.hold.deadline:
            acting = self.pool.proc(proc.actor, proc.main, proc.beat, proc.hold, True, proc.beats)
            found.append(Option(f"{name} ACTS on the outside world", "effect", acting, acts=True))
        endings = [e for e in proc.actor.endings if _can_end(e, proc.acted)]
        if proc.hold is None or (not proc.acted and now >= proc.hold.deadline):
            endings = [Ending.RAISED]  # attempt.check() lets it go no further
            if proc.acted and Ending.RETURNED in proc.actor.endings:
                endings.append(Ending.RETURNED)  # or nothing stopped it
        return found + [self._end(proc, ending) for ending in endings]

    def _end(self, proc: Proc, ending: Ending) -> Option:
        name, grant, main = proc.actor.name, proc.grant, proc.main
        assert grant is not None
        assert main is not None
        result: Returned | Raised | Overtaken
        if proc.hold is None and ending is Ending.RAISED:
            result = Overtaken()
        elif proc.hold is None:
            result = Returned(f"{name}:{grant.fence}".encode(), grant.deadline)
        elif ending is Ending.RETURNED:
            result = Returned(f"{name}:{grant.fence}".encode(), proc.hold.deadline)
        else:
            result = Raised(ERRORS[ending], proc.hold.deadline)
        leaves = self._in_flight(proc)
        local = self.locals.advance(main.local, result)
        quiet = self.pool.proc(proc.actor, main, None, proc.hold)
        kind = "overtaken" if isinstance(result, Overtaken) else f"body {ending.value}"
        return self._settle(
            quiet, local, False, f"{name}'s body {ending.value}", kind, leaves=leaves
        )

    def _recover(self, proc: Proc, line: Line) -> list[Option]:
        """`recover` tells the truth about the effect, or that it cannot tell."""
        name = proc.actor.name
        found = []
        answers = ((FOUND, True), (FREE, False), (None, None))
        for answer, truth in answers:
            local = self.locals.advance(line.local, answer)
            words = f"{name}'s recover says {answer.state.name if answer else 'nothing'}"
            found.append(self._settle(proc, local, False, words, "recover", truth=truth))
        return found

    def _crash(self, proc: Proc) -> Option:
        return Option(
            f"{proc.actor.name} CRASHES", "crash", self.pool.gone(proc.actor), crashes=1,
            leaves=self._in_flight(proc),
        )  # fmt: skip

    def _in_flight(self, proc: Proc) -> tuple[Message, ...]:
        """Its commands that were sent and not applied: they may yet arrive."""
        lines = (proc.main, proc.beat)
        sent = (line for line in lines if line is not None and line.phase is Phase.SENT)
        return tuple(self.pool.message(proc.actor, line) for line in sent)


def _can_end(ending: Ending, acted: bool) -> bool:
    if ending is Ending.RETURNED:
        return acted
    return not acted or ending is not Ending.NOT_STARTED
