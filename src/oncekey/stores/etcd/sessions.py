"""Sessions: the etcd leases that keep all claims of a process alive.

A session is a key that lives as long as its etcd lease. All claims with the same length of lease
belong to one session, so a process sends one keepalive for all of them, however many they are.

The owner stops first. etcd ends a lease no earlier than its TTL after the last keepalive arrived,
and the end that we know of counts from before that keepalive was sent. A claim is acknowledged, or
renewed, only if the end that we know of is not before the claim's own. So the TTL is longer than
the claims' leases, by a quarter and at least by SLACK_MIN_SECONDS, and is kept alive within that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from aetcd import rpc

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.held_claims import elapsed_us
from oncekey.stores.etcd.keyspace import Keys
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.transactions import put, transaction

SLACK_MIN_SECONDS: Final = 2
SLACK_DIVISOR: Final = 4
# Between the check that a claim is covered and the moment from which its lease counts.
MARGIN_US: Final = 50_000
BEATS_PER_SLACK: Final = 4
INTERVAL_MAX_SECONDS: Final = 30.0
# How long `close` waits for the servers to end sessions; else they end by themselves.
END_SECONDS: Final = 1.0


def session_seconds(lease: int) -> int:
    """The length of the leases of a session for a claim's lease, in whole seconds: 1, 2, 3, 4, 6,
    8, 12, 16 and so on, so that a process has few sessions, whatever leases it uses."""
    seconds = max(1, -(-lease // 1_000_000))
    power = 1 << (seconds.bit_length() - 1)
    if seconds == power:
        return seconds
    return 3 * power // 2 if 2 * seconds <= 3 * power else 2 * power


def ttl_seconds(length: int) -> int:
    """The TTL of the etcd lease of a session."""
    return length + max(SLACK_MIN_SECONDS, length // SLACK_DIVISOR)


class Session:
    """One session. `ends` is the earliest time at which it may end, in microseconds of the clock
    that counts the time that passes."""

    def __init__(self, number: int, length: int, ends: int) -> None:
        self.number = number
        self.length = length
        self.ends = ends

    def covers(self, lease: int) -> bool:
        """True if a claim made now, with this lease, ends before the session can."""
        return self.ends - elapsed_us() >= lease + MARGIN_US


class Sessions:
    """The sessions of one store object."""

    def __init__(self, members: Members, keys: Keys) -> None:
        self._members = members
        self._keys = keys
        self._current: dict[int, Session] = {}  # by the length of their leases
        self._by_number: dict[int, Session] = {}
        self._lock = asyncio.Lock()
        self.changed = asyncio.Event()  # there is a new session, so the interval may be shorter

    def covering(self, lease: int) -> Session | None:
        """The session for a claim made now; None if there is none that covers it yet."""
        session = self._current.get(session_seconds(lease))
        return session if session is not None and session.covers(lease) else None

    def is_covered(self, number: int, lease: int) -> bool:
        """True if this session of ours lasts for so long, and was not retired."""
        session = self._by_number.get(number)
        if session is None or self._current.get(session.length) is not session:
            return False
        return session.covers(lease)

    async def cover(self, lease: int, end: float) -> None:
        """Make sure that there is a session for a claim made now."""
        length = session_seconds(lease)
        async with self._lock:
            if self.covering(lease) is not None:
                return
            session = self._current.get(length)
            if session is not None:
                await self._keep_alive([session], end)
            if self._current.get(length) is None:
                await self._begin(length, end)
            if self.covering(lease) is None:
                raise StoreUnavailable(
                    "etcd answers too slowly to keep a claim alive", ambiguous=False
                )

    async def _begin(self, length: int, end: float) -> None:
        sent = elapsed_us()
        grant = rpc.LeaseGrantRequest(TTL=ttl_seconds(length))
        reply = await self._members.call("LeaseGrant", grant, end)
        session = Session(reply.ID, length, sent + reply.TTL * 1_000_000)
        key = put(self._keys.session(reply.ID), b"", reply.ID)
        await self._members.call("Txn", transaction((), [key]), end)
        self._current[length] = self._by_number[reply.ID] = session
        self.changed.set()

    async def keep_alive(self, is_used: Callable[[int], bool]) -> None:
        """Keep all sessions alive. One that was replaced ends with its last claim."""
        for session in list(self._by_number.values()):
            if self._current.get(session.length) is not session and not is_used(session.number):
                del self._by_number[session.number]
        if self._by_number:
            await self._keep_alive(list(self._by_number.values()), self._members.deadline())

    async def _keep_alive(self, sessions: list[Session], end: float) -> None:
        sent = elapsed_us()
        requests = [rpc.LeaseKeepAliveRequest(ID=session.number) for session in sessions]
        for reply in await self._members.call("LeaseKeepAlive", requests, end):
            session = self._by_number.get(reply.ID)
            if session is None:
                continue
            if reply.TTL <= 0:
                self.lose(reply.ID)
            else:
                session.ends = max(session.ends, sent + reply.TTL * 1_000_000)

    def retire(self, number: int) -> None:
        """Make no more claims in a session. It ends when the others have left it, as they do with
        their next renewal: whatever was written into it without our knowledge is free then."""
        session = self._by_number.get(number)
        if session is not None and self._current.get(session.length) is session:
            del self._current[session.length]

    def lose(self, number: int) -> None:
        """The session has ended: its claims must be written again to be kept."""
        session = self._by_number.pop(number, None)
        if session is not None and self._current.get(session.length) is session:
            del self._current[session.length]

    @property
    def interval(self) -> float:
        """How long to wait between two keepalives, in seconds."""
        slacks = [ttl_seconds(one.length) - one.length for one in self._by_number.values()]
        return min([INTERVAL_MAX_SECONDS, *(slack / BEATS_PER_SLACK for slack in slacks)])

    async def end(self, is_used: Callable[[int], bool]) -> None:
        """End the sessions that have no claims. The others end by themselves: their owners may
        still be running."""
        numbers = [number for number in self._by_number if not is_used(number)]
        self._current.clear()
        self._by_number.clear()
        end = time.monotonic() + END_SECONDS
        for number in numbers:
            with contextlib.suppress(errors.LeaseGone):
                await self._members.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=number), end)
