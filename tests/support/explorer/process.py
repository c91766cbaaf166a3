"""One attempt as an immutable process: where its flow stands, and where its heartbeat does.

A command goes through three phases, between any two of which the clock may move and others may
act: it is sent, the store applies it, the reply arrives. A body acts at most once, and only while
its owner believes that it holds the key; meanwhile the heartbeat sends commands of its own. A
process that returned or crashed holds nothing any more.

Owns what a process is, and interns processes. Knows no store.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tests.support.explorer.generator_states import GeneratorState
from tests.support.explorer.scenario import Actor

from oncekey.core.commands import Command, Reply
from oncekey.core.effects import Grant, command_of


class Phase(enum.Enum):
    """How far the command has come that a generator waits for."""

    READY = "ready"
    SENT = "sent"
    APPLIED = "applied"


class FlowState(NamedTuple):
    """One generator, and how far the command it waits for has come."""

    state: GeneratorState
    phase: Phase = Phase.READY
    sent_at: int = 0
    reply: Reply | None = None


class HeldClaim(NamedTuple):
    """What an owner believes: nobody else has the key before `deadline`."""

    owner: bytes
    fence: int
    deadline: int


class Message:
    """A command on its way. There is one object per content."""

    __slots__ = ("actor", "command", "number")

    def __init__(self, actor: Actor, command: Command, number: int) -> None:
        self.actor = actor
        self.command = command
        self.number = number


class Process:
    """One attempt's state; `main` is None once it returned or crashed."""

    __slots__ = ("acted", "actor", "beat", "beats", "held", "main")

    def __init__(
        self,
        actor: Actor,
        main: FlowState | None,
        beat: FlowState | None,
        held: HeldClaim | None,
        acted: bool,
        beats: int,
    ) -> None:
        self.actor = actor
        self.main = main
        self.beat = beat
        self.held = held
        self.acted = acted
        self.beats = beats

    @property
    def grant(self) -> Grant | None:
        """The grant of its body, while that runs."""
        if self.main is not None and isinstance(self.main.state.effect, Grant):
            return self.main.state.effect
        return None

    def flow(self, beating: bool) -> FlowState:
        flow = self.beat if beating else self.main
        assert flow is not None
        return flow


class Interned:
    """Interns processes and messages, so that states compare by identity."""

    def __init__(self) -> None:
        self._processes: dict[tuple[object, ...], Process] = {}
        self._messages: dict[tuple[str, Command], Message] = {}

    def message(self, actor: Actor, flow: FlowState) -> Message:
        command = command_of(flow.state.effect)
        assert command is not None
        known = self._messages.get((actor.name, command))
        if known is None:
            known = Message(actor, command, len(self._messages))
            self._messages[actor.name, command] = known
        return known

    def process(
        self,
        actor: Actor,
        main: FlowState | None,
        beat: FlowState | None = None,
        held: HeldClaim | None = None,
        acted: bool = False,
        beats: int = 0,
    ) -> Process:
        content = (actor.name, main, beat, held, acted, beats)
        known = self._processes.get(content)
        if known is None:
            known = self._processes[content] = Process(actor, main, beat, held, acted, beats)
        return known

    def gone(self, actor: Actor) -> Process:
        return self.process(actor, None)

    def with_flow(self, process: Process, beating: bool, flow: FlowState) -> Process:
        """The process with its flow, or its heartbeat, moved on and nothing else changed."""
        if beating:
            return self.process(
                process.actor, process.main, flow, process.held, process.acted, process.beats
            )
        return self.process(
            process.actor, flow, process.beat, process.held, process.acted, process.beats
        )
