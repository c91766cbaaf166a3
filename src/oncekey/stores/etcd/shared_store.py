"""`SharedStore`: what the sync and the async store both call, on the event loop of the store.

Besides commands it has background work: it keeps its sessions alive, and takes claims that were not
renewed in time out of their session, so that others may have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.core.guarantees import Guarantee
from oncekey.core.move_marks import MARK_ID
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.command_rounds import CommandRounds
from oncekey.stores.etcd.etcd_search import RecordLists, RecordReader
from oncekey.stores.etcd.garbage import Garbage
from oncekey.stores.etcd.held_claims import HeldClaim, Reading, StoreClock, UnsureClaim, is_claim_of
from oncekey.stores.etcd.keyspace import (
    FORMAT,
    LAPSED,
    Keys,
    StoredValue,
    pack_elected,
    pack_value,
    unpack_elected,
)
from oncekey.stores.etcd.members import Members, guarantee_of, read_members
from oncekey.stores.etcd.options import Options
from oncekey.stores.etcd.transactions import (
    found_value,
    get,
    is_at,
    nested,
    put,
    transaction,
)
from oncekey.stores.server_watch import CircuitBreaker
from oncekey.stores.store_rules import check_same_secret, election_holds

TRIES_MAX: Final = 20
# Records per request of lists, of the sweeper and of claims that lapse; fewer if the servers' limit
# is lower.
PAGE_MAX: Final = 100
_log = logging.getLogger("oncekey")


class SharedStore:
    """A store on the event loop that runs it."""

    def __init__(self, addresses: Sequence[str], options: Options) -> None:
        self.members = Members(addresses, options)
        self.keys = Keys(options.root)
        self._clock = StoreClock(options.clock)
        self._rounds = CommandRounds(self.members, self.keys, options, self._clock)
        self.held = self._rounds.held
        self.sessions = self._rounds.sessions
        self._operations_max = min(options.operations_max, PAGE_MAX)
        reader = RecordReader(self.members, self.keys, self.held, self._operations_max)
        self.lists = RecordLists(self.members, self.keys, reader, self._clock)
        self._garbage = Garbage(
            self.members, self.keys, reader, self._rounds.floor, self._clock, self._operations_max
        )
        self._breaker = CircuitBreaker(options.seconds("call_timeout"))
        self._beats: asyncio.Task[None] | None = None

    async def apply(self, commands: Sequence[Command]) -> list[Reply]:
        if self._beats is None or self._beats.done():
            self._beats = asyncio.create_task(self._beat())
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            replies = await self._rounds.apply(commands, self.members.deadline())
            replied = True
        except OncekeyError as error:
            replied = not isinstance(error, errors.NoReply)
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        return replies

    async def sweep(self, limit: int) -> int:
        # First, or a claim that lapses while it is swept would look like one of another process.
        await self.let_lapse()
        return await self._garbage.sweep(limit)

    async def bind(self, check: bytes) -> tuple[Guarantee, Seen]:
        """Remember the secret's check value, or refuse another one (S8); returns what the cluster
        can promise, and the mark of a move."""
        await self.prepare()
        end = self.members.deadline()
        check_same_secret(await self._create(self.keys.check, check, end), check)
        (mark,) = await self._rounds.apply([Look(MARK_ID)], end)
        assert isinstance(mark, Seen)
        return guarantee_of(await read_members(self.members)), mark

    async def prepare(self) -> None:
        """Make the store, if there is none, and check that this release can read it."""
        end = self.members.deadline()
        check_format(await self._create(self.keys.format, FORMAT, end))

    async def _create(self, key: bytes, value: bytes, end: float) -> bytes:
        """Set a value if there is none; returns the one that is there. It is read first, because
        servers whose quota is used up take no request that may write."""
        found = (await self.members.read(key, end)).kvs
        if not found:
            request = transaction([is_at(key, 0)], [put(key, value)], [get(key)])
            reply = await self.members.call("Txn", request, end)
            found = [] if reply.succeeded else reply.responses[0].response_range.kvs
        return bytes(found[0].value) if found else value

    async def elect(self, token: bytes, lease: int) -> bool:
        key, end = self.keys.elected, self.members.deadline()
        found = (await self.members.read(key, end)).kvs
        for _ in range(TRIES_MAX):
            now = self._clock.read().now
            if found:
                holder, since, until = unpack_elected(found[0].value)
                if holder != token and election_holds(since, until, now):
                    return False
            change = put(key, pack_elected(token, now, now + lease))
            revision = found[0].mod_revision if found else 0
            request = transaction([is_at(key, revision)], [change], [get(key)])
            reply = await self.members.call("Txn", request, end)
            if reply.succeeded:
                return True
            found = reply.responses[0].response_range.kvs
        return False

    # --- background work ----------------------------------------------------------------------

    async def _beat(self) -> None:
        """Keep sessions alive and let claims lapse, until the store is closed."""
        while True:
            self.sessions.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.sessions.interval):
                    await self.sessions.changed.wait()
            try:
                await self.sessions.keep_alive(self.held.of_session)
                await self.let_lapse()
            except OncekeyError:
                pass  # the next claim or renewal notices it, and says so to its caller
            except Exception:  # the sessions of this process depend on this task
                _log.exception("keeping the sessions of etcd alive failed; it is tried again")

    async def let_lapse(self) -> None:
        """Take claims that were not renewed in time out of their session."""
        reading = self._clock.read()
        lapsed = self.held.lapsed(reading.elapsed)
        for start in range(0, len(lapsed), self._operations_max):
            part = lapsed[start : start + self._operations_max]
            for held, found in zip(part, await self._take_out(part), strict=True):
                self.held.take_out(held, found)
        for unsure in self.held.lapsed_unsure(reading.elapsed):
            await self._let_unsure_lapse(unsure, reading)

    async def _take_out(self, claims: Sequence[HeldClaim]) -> list[StoredValue | None]:
        """Take claims out of their sessions. Returns for each what was there instead; None if it
        was done, or if nothing is there."""
        operations: list[Any] = []
        for value, _, _ in claims:
            key = self.keys.record(value.record.id)
            change = put(key, pack_value(value.record, 0, LAPSED))
            operations.append(nested([is_at(key, value.mod_revision)], [change], [get(key)]))
        request = transaction((), operations)
        reply = await self.members.call("Txn", request, self.members.deadline())
        replies = [one.response_txn for one in reply.responses]
        return [
            None
            if one.succeeded
            else found_value(held.value.record.id, one.responses[0].response_range)
            for held, one in zip(claims, replies, strict=True)
        ]

    async def _let_unsure_lapse(self, unsure: UnsureClaim, reading: Reading) -> None:
        """A claim whose reply never came: read whether it is there. If it is not, it may still
        come, from a member that was paused: its session must not live for ever then."""
        id, owner, session, ends = unsure
        found = await self.members.read(self.keys.record(id), self.members.deadline())
        value = found_value(id, found)
        if value is None:
            self.sessions.retire(session)
        elif is_claim_of(value, owner):
            until = reading.now + ends - reading.elapsed
            lapsed = value._replace(record=value.record._replace(lease_until=until))
            (other,) = await self._take_out([HeldClaim(lapsed, until, ends)])
            if other is not None and is_claim_of(other, owner):
                return  # it was written again; the next beat takes it out
        self.held.answered(id, owner)

    def forget(self) -> None:
        """Forget everything about records; for tests, which delete them."""
        self.held.clear()
        self._rounds.buckets.clear()
        self._garbage.begin_again()

    async def close(self) -> None:
        """End the sessions that hold nothing, and close the connections."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
            self._beats = None
        # The servers may be gone; then the sessions end by themselves.
        with contextlib.suppress(StoreUnavailable, ConfigurationError):
            await self.sessions.end(self.held.of_session)
        self.held.clear()
        await self.members.close()


def check_format(found: bytes) -> None:
    """Refuse what another release has written."""
    if found != FORMAT:
        raise ConfigurationError(
            f"the store has format {found!r}, this release reads {FORMAT!r}; use the release that "
            "wrote it, or another prefix"
        )
