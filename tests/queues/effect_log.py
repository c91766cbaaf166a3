"""What handlers did in the processes of a test, and which of their attempts are finished.

An effect is a line in a file, appended in one call, so that a process that is killed leaves whole
lines. A finish is a line as well, written when the store has confirmed it. By the two a test judges
safety, whatever was killed, paused or late: a key that was claimed again after its finish had ran
twice, and nothing else can tell that from a repetition after a lease that ended.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oncekey.core.commands import Claim, Done, Finish
from oncekey.queues.broker_identity import OPERATION


class Effect(NamedTuple):
    """One execution of a handler: by which order, with which child key, of which attempt on which
    record, in which process."""

    order: str
    child_key: str
    record: str
    fence: int
    pid: int


def append(path: str | Path, line: str) -> None:
    """Append a line in one call."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def note_effect(path: str | Path, order: object, attempt: Any) -> None:
    """Note the effect of an attempt, as the service has it that the handler calls."""
    record = attempt._job.claim.id.hex()
    key = attempt.child_key("ship")
    append(path, f"effect {order} {key} {record} {attempt.fence} {os.getpid()}")


_of_brokers: set[bytes] = set()  # the keys that remember a broker, claimed by this process


def is_of_a_message(command: Any) -> bool:
    """False for what a consumer does at its start, with the key that remembers its broker."""
    if isinstance(command, Claim) and command.label.startswith(OPERATION):
        _of_brokers.add(command.id)
    return getattr(command, "id", None) not in _of_brokers


def note_finishes(path: str | Path, commands: Sequence[Any], replies: Sequence[Any]) -> None:
    """Note those of the commands that finished the key of a message."""
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(command, Finish) and isinstance(reply, Done) and is_of_a_message(command):
            append(path, f"finish {command.id.hex()} {command.fence}")


class Effects:
    """The lines of a log, and what is safe about them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.all: list[Effect] = []
        self.finishes: dict[str, int] = {}
        for line in lines:
            kind, *fields = line.split()
            if kind == "effect":
                order, child_key, record, fence, pid = fields
                self.all.append(Effect(order, child_key, record, int(fence), int(pid)))
            else:
                record, fence = fields
                self.finishes.setdefault(record, int(fence))

    @classmethod
    def of(cls, path: Path) -> Effects:
        return cls(path.read_text().splitlines() if path.exists() else ())

    def counts(self, pid: int | None = None) -> Counter[str]:
        """How many effects each order had, in one process or in all."""
        return Counter(effect.order for effect in self.all if pid in (None, effect.pid))

    def check(self, orders: set[str]) -> None:
        """Check that every order had its effect, that a service can tell repetitions by their child
        key, and that nothing ran again after its outcome was stored (I1, I4, I10)."""
        found = {effect.order for effect in self.all}
        assert found == orders, f"lost: {orders - found}, unknown: {found - orders}"
        keys = {(effect.order, effect.child_key) for effect in self.all}
        assert len(keys) == len(orders), "two child keys for one message"
        again = [e for e in self.all if e.fence > self.finishes.get(e.record, e.fence)]
        assert not again, f"ran again after its outcome was stored: {again}"
