"""What is explored: the decision, the sweeper's test, both flows, and what duplicates are told.

The real ones come from core. A mutant is the same kit with one function of a changed copy of its
module, so the gate tests exactly the text that ships.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from oncekey.core import flow, heartbeat, machine, shared_reply
from oncekey.core.asks import Ask, Grant, Task, Verdict
from oncekey.core.commands import Claim, Reply
from oncekey.core.machine import Decision
from oncekey.core.record import Record


@dataclass(frozen=True)
class Kit:
    """The code under test."""

    decide: Callable[..., Decision]  # (record, command, now, floor)
    is_garbage: Callable[[Record, int], bool]
    attempt: Callable[[Task], Generator[Ask, object, Verdict]]
    heartbeat: Callable[[Grant], Generator[Ask, object, None]]
    reply_to_duplicate: Callable[[Claim, Reply, Claim], Reply | None]


REAL = Kit(
    machine.decide,
    machine.is_garbage,
    flow.attempt,
    heartbeat.heartbeat,
    shared_reply.reply_to_duplicate,
)
