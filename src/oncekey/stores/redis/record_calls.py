"""The calls of a script for many records: one on a single node, one per bucket on a cluster.

This module owns how arguments are laid out for the scripts (lua/common.lua) and which keys a call
lists. It knows no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record
from oncekey.stores.record_format import unpack_record
from oncekey.stores.redis.calls import Answer, Call
from oncekey.stores.redis.keyspace import Keyspace, by_bucket
from oncekey.stores.redis.scripts import ARCHIVES, INDEXES

TestClock = Callable[[], int]


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


def given(answers: Sequence[Answer]) -> Sequence[Any]:
    """The answers, if all calls had one."""
    for answer in answers:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return answers


def collected(
    parts: Sequence[Part], answers: Sequence[Answer], count: int
) -> tuple[int, list[Any]]:
    """The time of the first answer, and what the scripts have said to each of `count` questions,
    one item each."""
    found: list[Any] = [None] * count
    now = 0
    for part, answer in zip(parts, given(answers), strict=True):
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


def placed(positions: Sequence[int], parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with other positions: those in a batch instead of those among some of it."""
    for own, call in parts:
        yield Part([positions[position] for position in own], call)
