"""The heartbeat of a running body, as a generator that yields effects: it keeps the claim alive.

Pure, like attempt_flow.py. Must not know threads or asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from oncekey.core.commands import Done, Look, Renew, Seen
from oncekey.core.effects import CommandResult, DeadlineExtended, Effect, Grant, Sleep
from oncekey.core.errors import StoreUnavailable
from oncekey.core.late_owner import is_only_witness

RENEWALS_PER_LEASE: Final = 3


def heartbeat(grant: Grant) -> Generator[Effect, object, None]:
    """Renew the claim three times per lease; return once it is lost.

    1.  Renewed: the deadline moves.
    2.  The store is unavailable and the deadline has not passed: try again soon.
    3.  The claim of a retry-safe body is lost if the renewal was refused or the deadline has
        passed: somebody may have taken over.
    4.  The claim of any other body is taken over by nobody, at worst it is given up as unknown,
        and the body alone knows what it does. So while the store is unavailable the heartbeat goes
        on, and after a refusal it looks: the claim is lost only if somebody has decided the key.
    """
    renew = Renew(grant.id, grant.owner, grant.fence, grant.lease)
    deadline = grant.deadline
    beat = grant.lease // RENEWALS_PER_LEASE
    pause = beat
    while True:
        yield Sleep(pause)
        result = yield renew
        assert isinstance(result, CommandResult)
        if isinstance(result.reply, Done):
            deadline = result.sent_at + grant.lease
            yield DeadlineExtended(deadline)
            pause = beat
        elif isinstance(result.reply, StoreUnavailable) and result.at < deadline:
            pause = max(1, min(beat // 4, deadline - result.at))
        elif grant.retry_safe:
            return
        elif isinstance(result.reply, StoreUnavailable):
            pause = max(1, beat // 4)
        else:
            yield Sleep(1)
            result = yield Look(grant.id)
            assert isinstance(result, CommandResult)
            if isinstance(result.reply, Seen) and not is_only_witness(result.reply.record, grant):
                return
            pause = beat
