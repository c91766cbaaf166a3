"""Searches and measures an SQLite store, as generators of statements like program.py.

Each is one read without a lock.
"""

from __future__ import annotations

import json
from typing import Any, Final

from oncekey.core.record import State
from oncekey.core.search import (
    BODY_HEAD_BYTES,
    LOOKED_AT_MAX,
    MEASURE_MAX,
    RATE_WINDOW_US,
    Cursor,
    Measures,
    Page,
    Query,
    Walk,
)
from oncekey.stores.sqlite.program import QUERIES, Statement, Statements
from oncekey.stores.sqlite.rows import record_of

_ALL_STATES: Final = tuple(State)
# The states of which an index has all records, however many others there are.
_UNFINISHED: Final = frozenset((State.PENDING, State.UNKNOWN, State.ABSENT))
_SEARCH: Final = QUERIES["search"]
_SEARCH_UNFINISHED: Final = _SEARCH.replace("WHERE /* all */", QUERIES["search_unfinished"])


def search(now: int, query: Query, limit: int, after: Cursor) -> Statements[Page]:
    """At most `limit` of the records that match and are older than `after` (S11)."""
    if query.tag:
        return (yield from _search_ids(now, query, limit))
    walk = Walk(limit, after)
    is_unfinished = query.states and query.states <= _UNFINISHED
    statement = _SEARCH_UNFINISHED if is_unfinished else _SEARCH
    params = {
        "now": now,
        "states": json.dumps([int(state) for state in query.states or _ALL_STATES]),
        "expired": int(query.expired),
        "scope": query.scope,
        "operation": query.operation,
        "route": query.route,
        "key": query.key,
        "head": BODY_HEAD_BYTES,
    }
    while walk.most and walk.last is not None:
        where = {"fence": walk.last.fence, "id": walk.last.id}
        how_many = {"looked_at": walk.most, "limit": walk.wanted}
        rows = yield Statement(statement, {**params, **where, **how_many})
        looked_at, last_fence, last_id, _ = rows[0][19:]
        rows = [row for row in rows if row[0] is not None]
        found, places = [record_of(row) for row in rows], [row[-1] for row in rows]
        walk.add(found, places, looked_at, Cursor(last_fence, last_id))
    return walk.page(now)


def _search_ids(now: int, query: Query, limit: int) -> Statements[Page]:
    first, last = query.ids
    params = {"first": first, "last": last, "limit": LOOKED_AT_MAX, "head": BODY_HEAD_BYTES}
    rows = yield _named("search_ids", params)
    records = [record_of(row) for row in rows]
    found = [record._replace(steps=()) for record in records if query.matches(record, now)]
    found.sort(key=lambda record: (record.fence, record.id), reverse=True)
    return Page(tuple(found[:limit]), now, len(records), None)


def measure(now: int) -> Statements[Measures]:
    """How much is stored, how much of it is garbage, and how fast it grows (S12)."""
    params = {"now": now, "most": MEASURE_MAX, "since": now - RATE_WINDOW_US}
    rows = yield _named("measure", params)
    return Measures(now, *rows[0])


def _named(name: str, params: dict[str, Any]) -> Statement:
    return Statement(QUERIES[name], params)
