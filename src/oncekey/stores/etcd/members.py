"""The members of an etcd cluster, the calls to them, and what they can promise together.

A call goes to one member. If that one is down, paused or without a leader, the call goes to the
next one, until its time is up; later calls stay with the member that answered. Repeating is safe,
because every write of this store compares first: a request that arrives twice, or late, changes
nothing the second time. An acknowledged write is on the disks of a majority of the voting members.

The client library is aetcd's: its generated messages and stubs, without its client object, which
knows one address and no deadlines. All of this module runs on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from aetcd import rpc

from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.options import Options
from oncekey.stores.etcd.transactions import get, transaction

# Before all members are asked again; each round waits twice as long, up to the second number.
PAUSE_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 0.4
AUTH_TRIES_MAX: Final = 2

_CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # A connection that is open on our side only is found out; etcd allows a ping every 5 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
)
# A member that sees no leader says so at once.
_HAS_LEADER: Final = ("hasleader", "true")

_STUBS: Final = {
    "Txn": rpc.KVStub,
    "Range": rpc.KVStub,
    "LeaseGrant": rpc.LeaseStub,
    "LeaseRevoke": rpc.LeaseStub,
    "LeaseTimeToLive": rpc.LeaseStub,
    "LeaseKeepAlive": rpc.LeaseStub,
    "MemberList": rpc.ClusterStub,
    "Status": rpc.MaintenanceStub,
    "Alarm": rpc.MaintenanceStub,
    "Authenticate": rpc.AuthStub,
}

NOT_CONNECTED: Final = Guarantee(
    Level.FENCED,
    "not connected yet; etcd acknowledges what a majority of its members has on disk",
    ClockClass.SERVER_LEASE,
)


class _Endpoint(NamedTuple):
    """How a member is called: the methods of its stubs, by name."""

    address: str
    channel: Any
    methods: dict[str, Any]


class Members:
    """Calls to the members of one cluster."""

    def __init__(self, addresses: Sequence[str], options: Options) -> None:
        # Every process begins with another member, so that they share the load.
        self.addresses = random.sample(list(addresses), len(addresses))
        self._options = options
        self._try_seconds = options.seconds("try_timeout")
        self._call_seconds = options.seconds("call_timeout")
        self._members: list[_Endpoint] = []
        self._current = 0
        self._token = ""

    def deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self._call_seconds

    async def call(self, name: str, request: Any, end: float) -> Any:
        """Send a request until a member replies, until `end` at the latest. Raises
        StoreUnavailable or ConfigurationError."""
        ambiguous, replied, tries, pause = False, True, 0, PAUSE_SECONDS
        while True:
            member = self._member()
            seconds = min(self._try_seconds, max(end - time.monotonic(), 0.001))
            try:
                return await self._send(member, name, request, seconds)
            except grpc.aio.AioRpcError as error:
                if errors.is_lease_gone(error):
                    message = "an etcd lease ended before it was used"
                    raise errors.LeaseGone(message, ambiguous=ambiguous) from error
                meaning = errors.meaning_of(error)
                if meaning is None:
                    raise errors.setup_error(error) from error
                ambiguous = ambiguous or meaning.applied
                replied = error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
                tries += 1
                left = end - time.monotonic()
                if not meaning.elsewhere or left <= 0:
                    raise errors.unavailable(
                        meaning, member.address, ambiguous=ambiguous, replied=replied
                    ) from error
                self._leave(member)
                if tries % len(self.addresses) == 0:
                    await asyncio.sleep(min(pause, left))
                    pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def _send(self, member: _Endpoint, name: str, request: Any, seconds: float) -> Any:
        for _ in range(AUTH_TRIES_MAX):
            try:
                await self._authenticate(member, seconds)
                if name == "LeaseKeepAlive":
                    return await self._keep_alive(member, request, seconds)
                return await member.methods[name](
                    request, timeout=seconds, metadata=self._metadata()
                )
            except grpc.aio.AioRpcError as error:
                if not self._options.user or not errors.is_auth_expired(error):
                    raise
                self._token = ""
        await self._authenticate(member, seconds)
        return await member.methods[name](request, timeout=seconds, metadata=self._metadata())

    async def _keep_alive(
        self, member: _Endpoint, requests: Sequence[Any], seconds: float
    ) -> list[Any]:
        """Etcd takes keepalives as a stream only: it is opened for these requests, and closed."""

        async def sent() -> AsyncIterator[Any]:
            for request in requests:
                yield request

        stream = member.methods["LeaseKeepAlive"](
            sent(), timeout=seconds, metadata=self._metadata()
        )
        replies = []
        async for reply in stream:
            replies.append(reply)
        return replies

    async def read(self, key: bytes, end: float) -> Any:
        """What is stored under a key, as the reply to a `get`."""
        reply = await self.call("Txn", transaction((), [get(key)]), end)
        return reply.responses[0].response_range

    async def ask(self, address: str, name: str, request: Any) -> Any:
        """Send a request to one member only, for checks. Raises gRPC's own error."""
        self._member()
        member = next(one for one in self._members if one.address == address)
        return await self._send(member, name, request, self._try_seconds)

    async def _authenticate(self, member: _Endpoint, seconds: float) -> None:
        options = self._options
        if not options.user or self._token:
            return
        login = rpc.AuthenticateRequest(name=options.user, password=options.password)
        reply = await member.methods["Authenticate"](login, timeout=seconds)
        self._token = reply.token

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._token:
            return (_HAS_LEADER, ("token", self._token))
        return (_HAS_LEADER,)

    def _member(self) -> _Endpoint:
        if not self._members:
            self._members = [self._open(address) for address in self.addresses]
        return self._members[self._current]

    def _leave(self, member: _Endpoint) -> None:
        """Ask another member from now on, unless some other call has moved on already."""
        if self._members and self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    def _open(self, address: str) -> _Endpoint:
        if self._options.tls:
            channel = rpc.secure_channel(address, self._credentials(), _CHANNEL)
        else:
            channel = rpc.insecure_channel(address, _CHANNEL)
        stubs = {stub: stub(channel) for stub in set(_STUBS.values())}
        methods = {name: getattr(stubs[stub], name) for name, stub in _STUBS.items()}
        return _Endpoint(address, channel, methods)

    def _credentials(self) -> Any:
        def content(path: str) -> bytes | None:
            return Path(path).read_bytes() if path else None

        options = self._options
        try:
            return grpc.ssl_channel_credentials(
                content(options.ca), content(options.key), content(options.cert)
            )
        except OSError as error:
            raise ConfigurationError(f"a file for TLS cannot be read: {error}") from error

    async def close(self) -> None:
        """Close every connection. The next call opens new ones."""
        members, self._members = self._members, []
        for member in members:
            await member.channel.close()


# --- what they promise ----------------------------------------------------------------------------


class Member(NamedTuple):
    """One member: its name, whether it votes, and where clients reach it."""

    number: int
    name: str
    is_voting: bool
    addresses: tuple[str, ...]


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
