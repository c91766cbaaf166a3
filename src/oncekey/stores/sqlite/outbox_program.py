"""The outbox of an SQLite store: what each command does, as generators that yield statements.

Every command that writes runs under the write lock, so takes go one after the other and the rows of
an order group are numbered in the order in which they commit. This module must not know
connections.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from oncekey.stores.outbox_commands import (
    RECHECK_MAX_US,
    RECHECK_MIN_US,
    TAKE_BYTES,
    TAKE_ROUNDS,
    Added,
    DiscardParked,
    ListParked,
    Measure,
    OutboxCommand,
    OutboxCounts,
    OutboxEntry,
    OutboxRow,
    Purge,
    ReleaseParked,
    Settle,
    Take,
)
from oncekey.stores.sql_files import load_queries
from oncekey.stores.sqlite.program import BEGIN, COMMIT, Statement, Statements
from oncekey.stores.store_rules import StoreClock

R = TypeVar("R")

_QUERIES: Final = load_queries("oncekey.stores.sqlite", "sql/outbox.sql")
_WAITS: Final = 0  # a row's state: see sql/outbox.sql


def create() -> Statements[None]:
    """Create the table and its indexes, unless they are there."""
    yield BEGIN
    for name, sql in _QUERIES.items():
        if name.startswith("create_"):
            yield Statement(sql)
    yield COMMIT


def run(command: OutboxCommand[R], clock: StoreClock) -> Statements[R]:
    """Run one command in a transaction of its own, unless it only reads."""
    if isinstance(command, Take) and not (yield _query("due", {"now": clock(), "most": 1})):
        # A publisher that has nothing to do takes no lock.
        return cast(R, [])
    if isinstance(command, (Measure, ListParked)):
        read: R = yield from _PROGRAMS[type(command)](command, clock())
        return read
    yield BEGIN
    reply: R = yield from _PROGRAMS[type(command)](command, clock())
    yield COMMIT
    return reply


def add(row: OutboxRow, now: int) -> Statements[Added]:
    """Add a message inside the caller's open transaction."""
    params = {**row._asdict(), "now": now}
    known = yield _query("compare", params)
    if known:
        return Added.KNOWN if known[0][0] else Added.DIFFERS
    yield _query("add", params)
    return Added.NEW


def _query(name: str, params: Mapping[str, Any]) -> Statement:
    sql = _QUERIES[name]
    # Since Python 3.12 a parameter too many is no error, but it is sent for nothing.
    return Statement(sql, {key: value for key, value in params.items() if f":{key}" in sql})


def _changed() -> Statements[int]:
    rows = yield Statement(_QUERIES["changes"])
    return int(rows[0][0])


def _list(values: Sequence[Any]) -> str:
    return json.dumps(list(values))


def _take(command: Take, now: int) -> Statements[list[OutboxEntry]]:
    for _ in range(TAKE_ROUNDS):
        rows = yield _query("due", {"now": now, "most": command.limit})
        if not rows:
            return []
        due = _within_bytes(rows)
        put_off = yield from _put_off(due, now)
        seqs = _list([seq for seq, _, _ in due if seq not in put_off])
        if seqs != "[]":
            until = now + command.lease
            yield _query("take", {"owner": command.owner, "until": until, "seqs": seqs})
            rows = yield _query("taken", {"seqs": seqs})
            return [OutboxEntry(*row) for row in rows]
    return []


def _within_bytes(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """As many of the rows as fit into one take, without their sizes; the first one always does."""
    fitting: list[Sequence[Any]] = []
    size = 0
    for *row, length in rows:
        if size >= TAKE_BYTES:
            break
        fitting.append(row)
        size += length
    return fitting


def _put_off(due: Sequence[Sequence[Any]], now: int) -> Statements[set[int]]:
    """Put off the rows that wait behind another one of their group; returns their numbers."""
    put_off: set[int] = set()
    numbers = _list([seq for seq, _, _ in due])
    for queue, group in {(queue, group) for _, queue, group in due if group is not None}:
        place = {"queue": queue, "order_group": group}
        gap = yield _query("gap", {**place, "due": numbers})
        if not gap:
            continue
        first, state, due_at = gap[0]
        until = due_at if state == _WAITS else now + RECHECK_MAX_US
        until = max(now + RECHECK_MIN_US, min(now + RECHECK_MAX_US, until))
        behind = [seq for seq, *other in due if other == [queue, group] and seq > first]
        put_off.update(behind)
        yield _query("put_off", {"until": until, "seqs": _list(behind)})
    return put_off


def _settle(command: Settle, now: int) -> Statements[int]:
    ours = {"owner": command.owner, "now": now}
    for one in command.failed:
        values = {"until": now + one.delay, "counts": int(one.counts), "park": int(one.park)}
        yield _query("fail", {**ours, **values, "seq": one.seq, "error": one.error})
    yield _query("return_unsent", {**ours, "seqs": _list(command.unsent)})
    published = {**ours, "published": _list(command.published)}
    failed = _list([one.seq for one in command.failed])
    groups = yield _query("advanced_groups", {**published, "failed": failed})
    yield _query("keep_published" if command.keep else "delete_published", published)
    changed = yield from _changed()
    for queue, group in groups:
        place = {"queue": queue, "order_group": group}
        yield _query("wake", {**place, "now": now, "most": command.limit})
    return changed


def _purge(command: Purge, now: int) -> Statements[int]:
    yield _query("purge", {"before": now - command.keep, "most": command.limit})
    return (yield from _changed())


def _measure(command: Measure, now: int) -> Statements[OutboxCounts]:
    rows = yield _query("measure", {"now": now})
    return OutboxCounts(*rows[0])


def _parked(command: ListParked, now: int) -> Statements[list[OutboxEntry]]:
    rows = yield _query("parked", {"most": command.limit})
    return [OutboxEntry(*row) for row in rows]


def _release(command: ReleaseParked, now: int) -> Statements[int]:
    yield _query("release", {"now": now, "ids": _list(command.ids)})
    return (yield from _changed())


def _discard(command: DiscardParked, now: int) -> Statements[int]:
    ids = _list(command.ids)
    yield _query("wake_all", {"now": now, "ids": ids})
    yield _query("discard", {"ids": ids})
    return (yield from _changed())


_PROGRAMS: Final[dict[type[OutboxCommand[Any]], Callable[[Any, int], Statements[Any]]]] = {
    Take: _take,
    Settle: _settle,
    Purge: _purge,
    Measure: _measure,
    ListParked: _parked,
    ReleaseParked: _release,
    DiscardParked: _discard,
}
