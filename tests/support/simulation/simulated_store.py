"""The store of a simulated world: records, one clock, and the judge beside every decision.

The rules are those of the state machine under test. A store that is durable forgets nothing; one
that is not forgets its last writes when it crashes, although it has acknowledged them.
"""

from __future__ import annotations

from typing import Final

from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.simulation.judge import Broken, Judge

from oncekey.core.commands import Command, Reply
from oncekey.core.record import Record

START: Final = 100_000_000  # what the store's clock reads when the world begins


class SimulatedStore:
    """The records of all keys."""

    def __init__(self, code: CodeUnderTest, judge: Judge) -> None:
        self._code = code
        self._judge = judge
        self._undo: list[tuple[bytes, Record | None, int]] = []
        self.records: dict[bytes, Record] = {}
        self.floor = 0
        self.offset = START
        self.down_until = 0

    def apply(self, command: Command, now: int) -> Reply:
        """Decide a command, when the world's time is `now`."""
        id = command.id
        before = self.records.get(id)
        clock = now + self.offset
        try:
            decision = self._code.decide(before, command, clock, self.floor)
        except Exception as error:  # a fault of the state machine, shown with the way there
            raise Broken("machine", f"it raised {error!r}") from error
        if decision.write is not None:
            self._undo.append((id, before, self.floor))
            self.records[id] = decision.write
        self._judge.decided(before, command, clock, decision)
        return decision.reply

    def sweep(self, now: int) -> int:
        """Remove what is garbage; how many records that were."""
        clock = now + self.offset
        garbage = [r for r in self.records.values() if self._code.is_garbage(r, clock)]
        for record in garbage:
            self._undo.append((record.id, record, self.floor))
            self.floor = max(self.floor, record.fence)
            del self.records[record.id]
            self._judge.swept(record, clock)
        return len(garbage)

    def forget(self, writes: int, now: int) -> int:
        """Lose the last writes, as a store that is not durable does in a crash; how many."""
        lost = self._undo[-writes:]
        for id, before, floor in reversed(lost):
            self.floor = floor
            if before is None:
                del self.records[id]
            else:
                self.records[id] = before
        del self._undo[-writes:]
        for id, _, _ in lost:
            self._judge.look_at(id, self.records.get(id), now + self.offset)
        return len(lost)
