"""One attempt as an immutable process: where its flow stands, and where its heartbeat does.

A call has three moments, between any two of which the clock may move and others may act: sent,
applied by the store, answered. A body acts at most once, and only while its owner believes to
hold the key; beside it the heartbeat makes calls of its own. A process that returned or crashed
holds nothing any more.

Owns what a process is, and the pool in which equal ones are one object. Knows no store.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tests.support.explorer.local import Local
from tests.support.explorer.scenario import Actor

from oncekey.core.commands import Command, Reply
from oncekey.core.effects import ApplyCommand, Grant, RunBody


class Phase(enum.Enum):
    READY = "ready"
    SENT = "sent"
    APPLIED = "applied"


class Line(NamedTuple):
    """One generator, and how far the call it asks for has come."""

    local: Local
    phase: Phase = Phase.READY
    sent_at: int = 0
    reply: Reply | None = None


class Hold(NamedTuple):
    """The owner's belief: nobody else has the key before `deadline`."""

    owner: bytes
    fence: int
    deadline: int


class Message:
    """A command on its way, equal ones being one object."""

    __slots__ = ("actor", "command", "number")

    def __init__(self, actor: Actor, command: Command, number: int) -> None:
        self.actor = actor
        self.command = command
        self.number = number


class Proc:
    """One attempt's state; `main` is None once it returned or crashed."""

    __slots__ = ("acted", "actor", "beat", "beats", "hold", "main")

    def __init__(
        self,
        actor: Actor,
        main: Line | None,
        beat: Line | None,
        hold: Hold | None,
        acted: bool,
        beats: int,
    ) -> None:
        self.actor = actor
        self.main = main
        self.beat = beat
        self.hold = hold
        self.acted = acted
        self.beats = beats

    @property
    def grant(self) -> Grant | None:
        """The grant its body runs under, while it runs."""
        if self.main is not None and isinstance(self.main.local.ask, RunBody):
            return self.main.local.ask.grant
        return None

    def line(self, beating: bool) -> Line:
        line = self.beat if beating else self.main
        assert line is not None
        return line


class Pool:
    """Interns processes and messages, so that states compare by identity."""

    def __init__(self) -> None:
        self._procs: dict[tuple[object, ...], Proc] = {}
        self._messages: dict[tuple[str, Command], Message] = {}

    def message(self, actor: Actor, line: Line) -> Message:
        assert isinstance(line.local.ask, ApplyCommand)
        command = line.local.ask.command
        known = self._messages.get((actor.name, command))
        if known is None:
            known = Message(actor, command, len(self._messages))
            self._messages[actor.name, command] = known
        return known

    def proc(
        self,
        actor: Actor,
        main: Line | None,
        beat: Line | None = None,
        hold: Hold | None = None,
        acted: bool = False,
        beats: int = 0,
    ) -> Proc:
        content = (actor.name, main, beat, hold, acted, beats)
        known = self._procs.get(content)
        if known is None:
            known = self._procs[content] = Proc(actor, main, beat, hold, acted, beats)
        return known

    def gone(self, actor: Actor) -> Proc:
        return self.proc(actor, None)

    def with_line(self, proc: Proc, beating: bool, line: Line) -> Proc:
        """The process with its flow, or its heartbeat, moved on and nothing else changed."""
        if beating:
            return self.proc(proc.actor, proc.main, line, proc.hold, proc.acted, proc.beats)
        return self.proc(proc.actor, line, proc.beat, proc.hold, proc.acted, proc.beats)
