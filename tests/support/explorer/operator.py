"""An operator as a flow: looks at the key, finds out what happened, and decides it as it was shown.

The commands are those of engine/administration.py. Between any two of them everybody else may act.
"""

from __future__ import annotations

from collections.abc import Generator

from tests.support.explorer.scenario import KEY

from oncekey.core.commands import Look, Resolve, Seen
from oncekey.core.effects import CommandResult, Effect, Recover, Recovered
from oncekey.core.record import State
from oncekey.core.state_machine import state_now


def operator(name: str, key: bytes = KEY) -> Generator[Effect, object, None]:
    """Decides an unknown key once; leaves any other alone."""
    result = yield Look(key)
    assert isinstance(result, CommandResult)
    seen = result.reply
    if not isinstance(seen, Seen) or seen.record is None:
        return
    record = seen.record
    if state_now(record, seen.now) != State.UNKNOWN:
        return
    found = yield Recover(record)
    if isinstance(found, Recovered):
        note = f"{name} {found.note}"
        shown = (State.UNKNOWN, record.lease_until)
        yield Resolve(key, record.fence, found.state, found.body, note, *shown)
