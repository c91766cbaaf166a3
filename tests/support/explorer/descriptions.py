"""Commands, replies, records and outcomes as text, for the counter-examples that people read."""

from __future__ import annotations

from oncekey.core.commands import (
    Adopt,
    Busy,
    Claim,
    ClaimAlso,
    Claimed,
    Command,
    Done,
    FenceTooLow,
    Finish,
    Look,
    Lost,
    Mismatched,
    RaiseFence,
    Release,
    Renew,
    Replay,
    Reply,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.effects import AttemptOutcome
from oncekey.core.record import Record


def describe_command(command: Command) -> str:
    if isinstance(command, Claim):
        return "claim"
    if isinstance(command, ClaimAlso):
        return f"claim(fence {command.fence})"
    if isinstance(command, Finish):
        return f"finish({command.state.name}, {command.body!r}, fence {command.fence})"
    if isinstance(command, Renew):
        return f"renew(fence {command.fence})"
    if isinstance(command, Release):
        return f"release(fence {command.fence})"
    if isinstance(command, Resolve):
        return f"resolve({command.state.name}, fence {command.fence})"
    if isinstance(command, SaveStep):
        return f"step({command.name})"
    if isinstance(command, Adopt):
        return f"adopt({describe_record(command.record)})"
    if isinstance(command, RaiseFence):
        return f"raise(fence {command.fence} to {command.to})"
    assert isinstance(command, Look)
    return "look"


def describe_reply(reply: Reply) -> str:
    if isinstance(reply, Claimed):
        how = "taken over" if reply.taken_over else "claimed"
        return f"{how}, fence {reply.fence}"
    if isinstance(reply, Replay):
        return f"finished before: {reply.state.name} {reply.body!r}, fence {reply.fence}"
    if isinstance(reply, Mismatched):
        return "mismatch"
    if isinstance(reply, Busy):
        return f"in flight for {reply.remaining} more"
    if isinstance(reply, Unknown):
        return f"outcome unknown, fence {reply.record.fence}"
    if isinstance(reply, Done):
        return "done"
    if isinstance(reply, Lost):
        return "lost"
    if isinstance(reply, FenceTooLow):
        return f"needs a fence above {reply.above}"
    assert isinstance(reply, Seen)
    return f"seen: {describe_record(reply.record)}"


def describe_record(record: Record | None) -> str:
    if record is None:
        return "no record"
    name = owner_name(record.owner)
    if record.state.name == "PENDING":
        return f"{name} holds fence {record.fence} until {record.lease_until}"
    return (
        f"{record.state.name} {record.body!r} of {name} with fence {record.fence}, "
        f"expires at {record.expires_at}"
    )


def owner_name(owner: bytes) -> str:
    return owner[:1].decode("ascii", "replace")


def describe_outcome(outcome: AttemptOutcome) -> str:
    words = f"{outcome.kind.value.upper()} to its caller"
    if outcome.error is not None:
        return f"{words} ({outcome.error!r})"
    return f"{words} with {outcome.body!r}" if outcome.body else words
