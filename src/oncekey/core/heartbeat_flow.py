"""Keeps a claim alive beside a running body, as a generator that asks for what it wants.

Pure, like attempt_flow.py: it yields effects and is sent their results. Must not know threads or
asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from oncekey.core.commands import Done, Look, Renew, Seen
from oncekey.core.effects import ApplyCommand, CommandResult, DeadlineExtended, Effect, Grant, Sleep
from oncekey.core.errors import StoreUnavailable
from oncekey.core.late_owner import is_witness

RENEWALS_PER_LEASE: Final = 3


def heartbeat(grant: Grant) -> Generator[Effect, object, None]:
    """Renew at a third of the lease until lost; returning means the claim is gone.

    A renewal that fails is repeated. When the deadline passes without one, the claim of a
    retry-safe body counts as lost although nobody has said so: it may have been taken over. That
    of any other is nobody else's, given up as unknown at worst, and its body the only witness of
    what it does: it is lost only where somebody has decided the key.
    """
    renew = Renew(grant.id, grant.owner, grant.fence, grant.lease)
    deadline = grant.deadline
    beat = grant.lease // RENEWALS_PER_LEASE
    pause = beat
    while True:
        yield Sleep(pause)
        answer = yield ApplyCommand(renew)
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Done):
            deadline = answer.sent_at + grant.lease
            yield DeadlineExtended(deadline)
            pause = beat
        elif isinstance(answer.reply, StoreUnavailable) and answer.at < deadline:
            pause = max(1, min(beat // 4, deadline - answer.at))
        elif grant.retry_safe:
            return
        elif isinstance(answer.reply, StoreUnavailable):
            pause = max(1, beat // 4)
        else:
            yield Sleep(1)
            answer = yield ApplyCommand(Look(grant.id))
            assert isinstance(answer, CommandResult)
            if isinstance(answer.reply, Seen) and not is_witness(answer.reply.record, grant):
                return
            pause = beat
