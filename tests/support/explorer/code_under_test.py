"""The functions that the explorer drives: the state machine's and both flows.

REAL has those of core. A mutant has one of them from a changed copy of its module, so mutants are
made of exactly the text that ships.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from oncekey.core import attempt_flow, heartbeat_flow, state_machine
from oncekey.core.commands import Claim, Reply
from oncekey.core.effects import AttemptOutcome, Effect, Grant
from oncekey.core.record import Record
from oncekey.core.state_machine import Decision


@dataclass(frozen=True)
class CodeUnderTest:
    """One set of functions to explore."""

    decide: Callable[..., Decision]  # (record, command, now, floor)
    is_garbage: Callable[[Record, int], bool]
    # (claim, times, recoverable, arguments)
    attempt: Callable[..., Generator[Effect, object, AttemptOutcome]]
    heartbeat: Callable[[Grant], Generator[Effect, object, None]]
    reply_to_duplicate: Callable[[Claim, Reply, Claim], Reply | None]


REAL = CodeUnderTest(
    state_machine.decide,
    state_machine.is_garbage,
    attempt_flow.attempt,
    heartbeat_flow.heartbeat,
    state_machine.reply_to_duplicate,
)
