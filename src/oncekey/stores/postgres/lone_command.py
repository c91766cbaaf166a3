"""A claim or a finish that is the only command of its batch.

It has SQL functions of its own, which take no arrays and return one text instead of a record's
columns: for one command those cost more than the rest (see sql/shared/0007_short_replies.sql). What
is to follow from a record that was found is decided in program.py, as for a batch.
"""

from __future__ import annotations

from typing import Protocol

from oncekey.core.commands import Claim, Claimed, Done, Finish
from oncekey.stores.postgres.errors import UNREADABLE, unreadable_reply
from oncekey.stores.postgres.rows import Row, row_of
from oncekey.stores.postgres.statements import Statement, Statements
from oncekey.stores.server_watch import ServerClock, SettingsWatch


class Sender(Protocol):
    """What is needed of a program."""

    guard: bool
    lock_timeout: str
    server_clock: ServerClock
    watch: SettingsWatch

    def now(self) -> int | None: ...


def send_alone(
    sender: Sender, command: Claim | Finish, not_after: int | None
) -> Statements[Claimed | Done | Row]:
    """The reply in the usual case; otherwise the row that the command has found, as in a batch."""
    if isinstance(command, Claim):
        return (yield from _claim(sender, command, not_after))
    id, owner, fence, state, body = command
    limits = (sender.now(), sender.lock_timeout, sender.guard)
    rows = yield Statement("finish_one", (*limits, id, owner, fence, state.value, body))
    try:
        return Done() if rows[0][0] is None else row_of(rows[0][0])[1]
    except UNREADABLE as error:
        raise unreadable_reply("finish_one", error) from error


def _claim(sender: Sender, claim: Claim, not_after: int | None) -> Statements[Claimed | Row]:
    name = "claim_one_and_settings" if sender.watch.is_due() else "claim_one"
    limits = (sender.now(), not_after, sender.lock_timeout, sender.guard)
    sent = sender.server_clock.send_time()
    rows = yield Statement(name, (*limits, *claim[:10], claim.keep_unknown))
    try:
        (at, _), row = row_of(rows[0][0])
    except UNREADABLE as error:
        raise unreadable_reply(name, error) from error
    sender.server_clock.observe(at, sent)
    if len(rows[0]) > 1:
        sender.watch.notify(rows[0][1])
    return row or Claimed(at, 1, ())
