"""What a consumer does with a stream, as programs of calls of the server.

Redis keeps what a group was given and has not acknowledged in its list of pending entries. An entry
stays in that list until it is done, whatever happens to its consumer, so nothing is lost with a
consumer. Redis itself knows only for how long such an entry was idle. Beside the list stands a
sorted set with the time from which each pending entry may be taken again:

    taken, extended    the end of the lease, and a margin
    hidden, retried    after the delay, however long that is; the entry waits under the name of no
                       consumer (POSTPONED), so that a consumer that leaves can be removed
    given back         now

The set only says when. If it is lost, or a consumer dies between a blocking read and its entry in
the set, `tidy` finds pending entries that are not in it, once they were idle for a lease. An entry
keeps its id all the way, and with it its number of deliveries.

The scripts are in lua/. A program may be abandoned at any yield, as by a broken connection.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import Settled
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams.message import (
    LOST_FIELD,
    PARKED_FIELD,
    again_fields,
    message_of,
    moved_fields,
)
from oncekey.queues.redis_streams.settings import DELETE, TRIM, StreamSettings
from oncekey.queues.redrive import REDRIVE_HEADER, GoOn

T = TypeVar("T")
CONSUMER_PREFIX: Final = "oncekey-"
POSTPONED: Final = "oncekey-postponed"
MARKER_PREFIX: Final = "oncekey-identity-"
# A key's lease begins after its entry was taken; without a margin its entry would come too early.
LEASE_MARGIN_S: Final = 1.0
BLOCK_MAX_S: Final = 0.5  # a blocking read ends after this, since `stop` cannot interrupt it
TIDY_EVERY_S: Final = 5.0
TIDY_MOST: Final = 256  # pending entries that are looked at each time
GONE_AFTER_S: Final = 3600.0  # then a silent consumer without entries is removed
REDRIVE_BATCH: Final = 100
# Of one entry, names and values of its fields: a script of Redis cannot add one with more, since
# its stack has 8,000 places. An entry that has more is added by a command of its own.
SCRIPT_WORDS_MAX: Final = 7_000
_log = logging.getLogger("oncekey")
_ACTIONS: Final = {
    Kind.HIDE: "later",
    Kind.RETRY: "later",
    Kind.GIVE_BACK: "later",
    Kind.DEAD_LETTER: "dead",
    Kind.PARK: "park",
}


class RunScript(NamedTuple):
    """Run a script of lua/ with these keys and arguments; the result is its reply."""

    name: str
    keys: Sequence[str]
    arguments: Sequence[str | bytes | int]


class WaitForEntry(NamedTuple):
    """XREADGROUP for one new entry, for so many milliseconds; the result is false if there was
    none. The entry itself is not read from it, since redis-py has several forms for it: it is left
    to this consumer, and taken by the next script."""

    stream: str
    group: str
    consumer: str
    milliseconds: int


class AddEntry(NamedTuple):
    """XADD, for an entry that is too large for a script."""

    stream: str
    words: Sequence[bytes]


class AskServer(NamedTuple):
    """INFO; the result is a dictionary, empty if the server does not answer it."""


StreamCall = RunScript | AddEntry | WaitForEntry | AskServer
Program = Generator[StreamCall, Any, T]


class StreamProgram:
    """The programs of one consumer of a group. `needs_identity` has the stream marked, so that a
    later one of the same name is known for another stream."""

    def __init__(
        self,
        settings: StreamSettings,
        *,
        needs_identity: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.consumer = _consumer_name()
        self.identity: str | None = None
        self._process = os.getpid()
        self._needs_identity = needs_identity
        self._now = now
        self._is_left_over = False  # a blocking read may have left an entry to this consumer
        self._tidied_at = -TIDY_EVERY_S
        self._tidy_from = "-"
        self._missed = 0

    # --- the start ----------------------------------------------------------------------------

    def facts(self) -> Program[BrokerFacts]:
        own = self.settings
        if self._process != os.getpid():
            self._process = os.getpid()  # it was made before a fork
            self.consumer = _consumer_name()
        wanted = MARKER_PREFIX + secrets.token_hex(8) if self._needs_identity else ""
        arguments = (own.group, own.start_id, MARKER_PREFIX, wanted, secrets.token_hex(8))
        keys = (own.stream, own.broker_key)
        is_found, marker, groups, broker = yield RunScript("open", keys, arguments)
        if not is_found:
            raise ConfigurationError(
                f"the stream {own.stream!r} has no group {own.group!r}. Say where it begins: "
                "start='first' for everything that is in the stream, or start='new' for what is "
                "added from now on"
            )
        if own.acked == DELETE and groups > 1:
            raise ConfigurationError(
                f"acked='delete': {groups - 1} other groups read the stream {own.stream!r}, and "
                "would miss what is deleted; take acked='trim' or 'keep'"
            )
        self.identity = marker.decode().removeprefix(MARKER_PREFIX) if wanted else None
        info = yield AskServer()
        for warning in server_warnings(info):
            _log.warning("stream %s: %s", own.stream, warning)
        return BrokerFacts(
            own.stream,
            identity=self.identity,
            retention=own.retention_s,
            broker=identity_of("redis", id=broker.decode()),
        )

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, most: int, wait: float, lease: float) -> Program[Sequence[Message]]:
        if not most:
            return ()
        if self._now() - self._tidied_at >= TIDY_EVERY_S:
            self._tidied_at = self._now()
            yield from self._tidy(lease)
        messages, next_due = yield from self._take(most, lease)
        if messages or wait <= 0:
            return messages
        seconds = min(wait, BLOCK_MAX_S, next_due)
        self._is_left_over = True
        own = self.settings
        milliseconds = max(1, int(seconds * 1000))  # 0 would be for ever
        was_given = yield WaitForEntry(own.stream, own.group, self.consumer, milliseconds)
        if not was_given:
            self._is_left_over = False
            return ()
        messages, _ = yield from self._take(most, lease)
        return messages

    def _take(self, most: int, lease: float) -> Program[tuple[list[Message], float]]:
        own = self.settings
        arguments = (
            own.group,
            self.consumer,
            most,
            _ms(lease + LEASE_MARGIN_S),
            self._marker,
            int(self._is_left_over),
        )
        keys = (own.stream, own.due_key, own.parked_key)
        taken, gone, next_due = yield RunScript("take", keys, arguments)
        self._is_left_over = False
        for id, deliveries, consumer in gone:
            _log.error(
                "stream %s: entry %s was trimmed before it was done (delivered %d times, last to "
                "%s); it cannot be handled any more, and is noted in %s. Trim by MINID behind the "
                "oldest pending entry, or let acked='trim' do it",
                own.stream,
                id.decode(),
                deliveries,
                consumer.decode(),
                own.parked_key,
            )
        messages = [message_of(entry, own.stream, own.body_field, self.identity) for entry in taken]
        return messages, (next_due / 1000 if next_due >= 0 else BLOCK_MAX_S)

    def _tidy(self, lease: float) -> Program[None]:
        own = self.settings
        arguments = (
            own.group,
            _ms(lease + LEASE_MARGIN_S),
            self._tidy_from,
            TIDY_MOST,
            _ms(GONE_AFTER_S),
            CONSUMER_PREFIX,
            MARKER_PREFIX,
            int(own.acked == TRIM),
        )
        following, missed = yield RunScript("tidy", (own.stream, own.due_key), arguments)
        self._tidy_from = following.decode()
        if missed > self._missed:
            _log.error(
                "stream %s: %d entries were trimmed before the group %s was given them; the "
                "producers' MAXLEN is too short for how far its consumers are behind",
                own.stream,
                missed - self._missed,
                own.group,
            )
        self._missed = missed

    # --- settling -----------------------------------------------------------------------------

    def settle(self, settled: Sequence[Settled]) -> Program[None]:
        own = self.settings
        moved = yield from self._move_large(settled)
        removed = [m.raw.id for m, ending in settled if ending.kind is Kind.REMOVE or m in moved]
        arguments: list[str | bytes | int] = [
            own.group,
            self.consumer,
            int(own.acked == DELETE),
            POSTPONED,
            len(removed),
            *removed,
        ]
        for message, disposition in settled:
            if disposition.kind is Kind.REMOVE or message in moved:
                continue
            action = _ACTIONS[disposition.kind]
            if action == "later":
                again = again_fields(message, self.identity)
                words = again if len(again) <= SCRIPT_WORDS_MAX else []
            else:
                words = moved_fields(message, disposition, self.identity)
            entry = message.raw
            arguments += (action, entry.id, entry.deliveries, _ms(disposition.seconds), len(words))
            arguments += words
        keys = (own.stream, own.due_key, own.dead_key, own.parked_key)
        added = yield RunScript("settle", keys, arguments)
        for id in added:
            _log.warning(
                "stream %s: entry %s was trimmed while it was in hand, and was added again, since "
                "it is not done",
                own.stream,
                id.decode(),
            )

    def _move_large(self, settled: Sequence[Settled]) -> Program[set[Message]]:
        """Move dead letters and parked messages that are too large for the script; they are to be
        removed then. A crash in between leaves a second copy, as any move may."""
        own = self.settings
        moved = set[Message]()
        for message, disposition in settled:
            if disposition.kind not in (Kind.DEAD_LETTER, Kind.PARK):
                continue
            words = moved_fields(message, disposition, self.identity)
            if len(words) > SCRIPT_WORDS_MAX:
                is_dead = disposition.kind is Kind.DEAD_LETTER
                yield AddEntry(own.dead_key if is_dead else own.parked_key, words)
                moved.add(message)
        return moved

    def extend(self, messages: Sequence[Message], seconds: float) -> Program[None]:
        own = self.settings
        arguments: list[str | bytes | int] = [own.group, self.consumer]
        arguments.append(_ms(seconds + LEASE_MARGIN_S))
        for message in messages:
            arguments += (message.raw.id, message.raw.deliveries)
        gone = yield RunScript("extend", (own.stream, own.due_key), arguments)
        for id in gone:
            _log.warning(
                "stream %s: entry %s was trimmed while its handler runs; if this process dies now, "
                "it is lost",
                own.stream,
                id.decode(),
            )

    def redrive(self, most: int, id: str, parked: bool, go_on: GoOn) -> Program[int]:
        """Move what stands in the stream of dead letters, or of parked messages, up to what is its
        last entry at the beginning. One that fails again stands behind that."""
        own, moved, copied = self.settings, 0, b""
        keys = (own.stream, own.parked_key if parked else own.dead_key)
        marks = () if parked else (REDRIVE_HEADER.encode(), id.encode())
        left_out = PARKED_FIELD if parked else ""
        after, last = b"-", b""
        while moved < most or copied:
            wanted = min(REDRIVE_BATCH, most - moved)
            arguments = (
                wanted,
                SCRIPT_WORDS_MAX,
                copied,
                after,
                last,
                left_out,
                LOST_FIELD,
                *marks,
            )
            part, copied, fields, after, last = yield RunScript("redrive", keys, arguments)
            moved += part
            if copied:
                yield AddEntry(own.stream, (*fields, *marks))
                moved += 1
            if not copied and (not after or not go_on(moved)):
                break
        return moved

    def leave(self) -> Program[None]:
        own = self.settings
        arguments = (own.group, self.consumer, POSTPONED)
        yield RunScript("leave", (own.stream, own.due_key), arguments)

    @property
    def _marker(self) -> str:
        return MARKER_PREFIX + self.identity if self.identity else ""


def server_warnings(info: dict[str, Any]) -> list[str]:
    """What is said at the start about a server that can lose messages, by its INFO."""
    warnings = []
    if "aof_enabled" in info and not int(info["aof_enabled"]):
        warnings.append(
            "the server keeps no append-only file, so it forgets messages and acknowledgements "
            "when it crashes (appendonly yes, appendfsync always)"
        )
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        warnings.append(
            f"the server evicts keys when its memory is full ({policy}), streams too; set "
            "maxmemory-policy noeviction"
        )
    return warnings


def _consumer_name() -> str:
    """A name in the group that no other process has."""
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())
    return f"{CONSUMER_PREFIX}{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
