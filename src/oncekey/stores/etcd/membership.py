"""The members of a cluster, and what they can promise together.

An acknowledged write is on the disks of a majority of the voting members. This module reads the
list of members, and judges it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aetcd import rpc

from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.stores.etcd.members import Members


class Member(NamedTuple):
    """One member: its name, whether it votes, and where clients reach it."""

    number: int
    name: str
    is_voting: bool
    addresses: tuple[str, ...]


NOT_CONNECTED = Guarantee(
    Level.FENCED,
    "not connected yet; etcd acknowledges what a majority of its members has on disk",
    ClockClass.SERVER_LEASE,
)


async def read_members(members: Members) -> list[Member]:
    """The members of the cluster, as it lists them."""
    reply: Any = await members.call("MemberList", rpc.MemberListRequest(), members.deadline())
    return [
        Member(one.ID, one.name, not one.isLearner, tuple(one.clientURLs)) for one in reply.members
    ]


def guarantee_of(members: list[Member]) -> Guarantee:
    """What a cluster of these members can promise."""
    voting = sum(member.is_voting for member in members)
    if voting <= 1:
        reason = "acknowledged writes are on the disk of one member: what it loses is lost"
    else:
        majority = voting // 2 + 1
        reason = (
            f"acknowledged writes are on the disks of {majority} of {voting} members; "
            f"{voting - majority} may be lost"
        )
    return Guarantee(Level.FENCED, reason, ClockClass.SERVER_LEASE)
