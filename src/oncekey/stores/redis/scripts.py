"""The store's Lua scripts, and the calls of them: their text, their keys and arguments, and what is
read out of their replies.

Each script is its own first line (`#!lua` and its flags), then what all of them share, then the
rest of its file. It is called by the digest that the server knows. What is asked about many records
is one call on a single node, and one per bucket on a cluster. This module owns how arguments are
laid out (lua/common.lua, and stores/record_format.py for a record). It knows no connection.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import Claim, Finish, Renew
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import Record, State
from oncekey.core.state_machine import has_ended
from oncekey.stores.record_format import (
    HEAD,
    LENGTHS_MAX,
    OWNER_BYTES,
    VERSION,
    Stored,
    pack_record,
    unpack_record,
)
from oncekey.stores.redis.keyspace import Keyspace, by_bucket

T = TypeVar("T")
TestClock = Callable[[], int]

EVERY_NODE: Final = -1
FENCE_BYTES: Final = 8

NAMES: Final = (
    "claim", "finish", "renew", "look", "replace", "add", "sweep", "sweep_history", "range",
    "heads", "tags", "measure", "history", "archive", "elect", "bind",
    "probe", "sightings", "remember", "forget", "touch",
)  # fmt: skip
# These change nothing, so that a call without a reply has had no effect.
READS: Final = frozenset(
    ("look", "range", "heads", "tags", "measure", "history", "probe", "sightings")
)
# These remove garbage, so they have the functions for it.
COLLECTORS: Final = frozenset(("claim", "sweep"))
# These have the text of another one, and are refused where the server's memory is full.
WITHIN_MEMORY: Final = {"add": "replace"}
# The indexes that a script uses beside records, with which it must be on one node.
INDEXES: Final = {
    "claim": ("claims", "open", "due", "floor"),
    "finish": ("open",),
    "look": ("claims", "floor"),
    "archive": ("past",),
    "replace": ("claims", "open", "due", "past"),
    "add": ("claims", "open", "due", "past"),
    "sweep": ("claims", "open", "due", "floor"),
    "sweep_history": ("past",),
}
# These may move a version of a record to its key's archive.
ARCHIVES: Final = frozenset(("replace", "add", "archive"))


class Script(NamedTuple):
    """A script's text, and its digest, by which it is called."""

    text: bytes
    digest: bytes


@functools.cache
def scripts() -> dict[str, Script]:
    """All scripts by name."""
    folder = resources.files(__package__) / "lua"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    garbage = (folder / "garbage.lua").read_text(encoding="utf-8")
    found = {}
    for name in NAMES:
        file = folder / f"{WITHIN_MEMORY.get(name, name)}.lua"
        first, rest = file.read_text(encoding="utf-8").split("\n", 1)
        if name in WITHIN_MEMORY:
            first = "#!lua"
        shared = common + garbage if name in COLLECTORS else common
        text = f"{first}\n{shared}{rest}".encode()
        # The server names scripts by SHA-1; nothing secret depends on it.
        found[name] = Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
    return found


# --- calls ----------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One script with its keys and arguments; without a script, `args` is a plain command.

    bucket   any bucket of its keys, by which its node is found; EVERY_NODE for all nodes that hold
             buckets, which gives a list of replies
    """

    script: str
    bucket: int
    keys: Sequence[bytes]
    args: Sequence[Any]

    @property
    def is_write(self) -> bool:
        """True if the call may change something."""
        return bool(self.script) and self.script not in READS

    @property
    def words(self) -> tuple[Any, ...]:
        """The command to send."""
        if not self.script:
            return tuple(self.args)
        digest = scripts()[self.script].digest
        return (b"EVALSHA", digest, len(self.keys), *self.keys, *self.args)


# What came of a call: the server's reply, or why there is none.
Answer = Any | StoreUnavailable

# A generator of lists of calls, which is sent an answer to each.
Calls = Generator[list[Call], Sequence[Answer], T]


class Part(NamedTuple):
    """A call, and the positions of what it is about among all that were asked for."""

    positions: Sequence[int]
    call: Call


class RecordCalls:
    """Makes the calls of one store. The clock is the server's; `clock` replaces it in tests."""

    def __init__(self, keys: Keyspace, *, is_cluster: bool, clock: TestClock | None) -> None:
        self.keys = keys
        self.is_cluster = is_cluster
        self.clock = clock

    def now(self) -> bytes:
        """The clock reading to send: none, unless a test replaces the clock."""
        return b"%d" % self.clock() if self.clock is not None else b""

    def one(self, script: str, bucket: int, key: bytes, *args: Any) -> Call:
        """The call of a script for one key."""
        return Call(script, bucket, [key], (self.now(), 1, *args))

    def for_records(
        self, script: str, ids: Sequence[bytes], args: Sequence[Sequence[Any]], *shared: Any
    ) -> list[Part]:
        """The calls for these records; `args` are those of each, `shared` those of all."""
        return self.for_keys(script, ids, [self.keys.record(id) for id in ids], args, *shared)

    def for_keys(
        self,
        script: str,
        ids: Sequence[bytes],
        keys: Sequence[bytes],
        args: Sequence[Sequence[Any]],
        *shared: Any,
    ) -> list[Part]:
        """The calls for keys that belong to these ids."""
        if not ids:
            return []
        now = self.now()
        if not self.is_cluster:
            flat = [arg for each in args for arg in each]
            call = Call(script, 0, keys, (now, len(keys), *shared, *flat))
            return [Part(range(len(ids)), call)]
        parts = []
        for bucket, positions in by_bucket(ids).items():
            own = [keys[position] for position in positions]
            flat = [arg for position in positions for arg in args[position]]
            listed = [*own, *(self.keys.index(name, bucket) for name in INDEXES.get(script, ()))]
            if script in ARCHIVES:
                listed += [self.keys.archive(ids[position]) for position in positions]
            call = Call(script, bucket, listed, (now, len(own), *shared, *flat))
            parts.append(Part(positions, call))
        return parts

    def for_buckets(
        self,
        script: str,
        indexes: Sequence[str],
        buckets: Sequence[int],
        args: Sequence[Sequence[Any]],
        *shared: Any,
    ) -> list[Part]:
        """The calls for these indexes of these buckets: all of the first bucket, then all of the
        next. `args` are those of each index of each bucket."""
        if not buckets:
            return []
        now, each = self.now(), len(indexes)
        keys = [self.keys.index(index, bucket) for bucket in buckets for index in indexes]
        if not self.is_cluster:
            flat = [arg for own in args for arg in own]
            call = Call(script, 0, keys, (now, len(keys), *shared, *flat))
            return [Part(range(len(keys)), call)]
        parts = []
        for number, bucket in enumerate(buckets):
            positions = range(number * each, (number + 1) * each)
            flat = [arg for position in positions for arg in args[position]]
            own = [keys[position] for position in positions]
            parts.append(Part(positions, Call(script, bucket, own, (now, each, *shared, *flat))))
        return parts


# --- arguments ------------------------------------------------------------------------------------

_PENDING: Final = int(State.PENDING)
_FENCE_REVISION: Final = struct.Struct(">qI")
_FINISH: Final = struct.Struct(">Bq16s")
_RENEW: Final = struct.Struct(">q16sq")
_REVISIONS: Final = 2**32


def claim_record(claim: Claim) -> bytes:
    """The record of a first claim, without the times that only the server knows: in place of the
    end of its lease it has the length."""
    (
        _, owner, fingerprint, lease, keep, audit, retry_safe,
        scope, label, key, in_transaction, keep_unknown,
    ) = claim[:]  # fmt: skip
    texts = (fingerprint, scope.encode(), label.encode(), key.encode())
    lengths = [len(text) for text in texts]
    if len(owner) != OWNER_BYTES or max(lengths) > LENGTHS_MAX:
        raise ConfigurationError(
            f"an owner has {OWNER_BYTES} bytes, and a fingerprint, scope, label or key at most "
            f"{LENGTHS_MAX}"
        )
    head = HEAD.pack(
        VERSION, _PENDING, retry_safe and not in_transaction, 0, 1, 1, 0, lease, 0, keep, audit,
        keep_unknown, owner, *lengths, 0, 0,
    )  # fmt: skip
    return b"".join((head, *texts))


def finish_head(finish: Finish) -> bytes:
    return _FINISH.pack(finish.state, finish.fence, finish.owner)


def renew_head(renew: Renew) -> bytes:
    return _RENEW.pack(renew.fence, renew.owner, renew.lease)


def archive_arguments(past: Record) -> tuple[bytes, int]:
    """The two arguments of a past generation that is archived."""
    return pack_record(past, 1), past.audit_until


def replace_arguments(
    before: Stored | None, write: Record, archive: Record | None
) -> tuple[bytes, bytes, int, int | bytes, bytes, int | bytes]:
    """The six arguments of a record that is written in place of the version that was read; None
    if there was no record."""
    # A key that waits for a decision must not vanish by itself, whatever it says.
    lasts = write.state == State.PENDING or write.is_undecided
    return (
        b"" if before is None else _FENCE_REVISION.pack(before.record.fence, before.revision),
        pack_record(write, 1 if before is None else (before.revision + 1) % _REVISIONS),
        write.sweep_at,
        b"" if lasts else write.audit_until,
        b"" if has_ended(write) else b"1",
        b"" if archive is None else archive.audit_until,
    )


# --- replies --------------------------------------------------------------------------------------


def given(answers: Sequence[Answer]) -> Sequence[Any]:
    """The answers, if all calls had one."""
    for answer in answers:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return answers


def collected(parts: Sequence[Part], count: int) -> Calls[tuple[int, list[Any]]]:
    """The time of the first answer, and what the scripts have said to each of `count` questions,
    one item each."""
    answers = given((yield [part.call for part in parts]))
    found: list[Any] = [None] * count
    now = 0
    for part, answer in zip(parts, answers, strict=True):
        now = now or int(answer[0])
        for position, item in zip(part.positions, answer[1:], strict=True):
            found[position] = item
    return now, found


def readable(ids: Sequence[bytes], values: Sequence[bytes | int]) -> list[Record]:
    """The records of these ids. Left out are those that are gone, and those of a newer release:
    they must not hide the others, and that release has its own lists."""
    records = []
    for id, value in zip(ids, values, strict=True):
        if isinstance(value, bytes) and value:
            with suppress(ValueError):
                records.append(unpack_record(id, value).record)
    return records
