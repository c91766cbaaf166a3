"""Searches and measures a PostgreSQL store, with one short statement each, as programs."""

from __future__ import annotations

from typing import Final

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
from oncekey.stores.postgres.rows import stored_row_of
from oncekey.stores.postgres.statements import Statement, Statements

_ALL_STATES: Final = tuple(State)
_LAST_ID: Final = 23  # the column of the last id that was looked at
_PLACE: Final = 24  # ... and how many records were looked at up to this one


def search(clock: int | None, query: Query, limit: int, after: Cursor) -> Statements[Page]:
    """At most `limit` of the records that match and are older than `after` (S11)."""
    if query.tag:
        return (yield from _search_ids(clock, query, limit))
    states = [int(state) for state in query.states or _ALL_STATES]
    walk = Walk(limit, after)
    while walk.most and walk.last is not None:
        rows = yield Statement(
            "search",
            (
                clock,
                walk.last.fence,
                walk.last.id,
                walk.most,
                walk.wanted,
                states,
                query.expired,
                query.scope,
                query.operation,
                query.route,
                query.key,
                BODY_HEAD_BYTES,
            ),
        )
        clock, looked_at, last_fence = rows[0][:3]
        found = [stored.record for row in rows if (stored := stored_row_of(row)) is not None]
        places = [row[_PLACE] for row in rows[: len(found)]]
        walk.add(found, places, looked_at, Cursor(last_fence, rows[0][_LAST_ID]))
    assert clock is not None
    return walk.page(clock)


def _search_ids(clock: int | None, query: Query, limit: int) -> Statements[Page]:
    params = (clock, *query.ids, LOOKED_AT_MAX, BODY_HEAD_BYTES)
    rows = yield Statement("search_ids", params)
    now = rows[0][0]
    records = [stored.record for row in rows if (stored := stored_row_of(row)) is not None]
    found = [record._replace(steps=()) for record in records if query.matches(record, now)]
    found.sort(key=lambda record: (record.fence, record.id), reverse=True)
    return Page(tuple(found[:limit]), now, len(records), None)


def measure(clock: int | None) -> Statements[Measures]:
    """How much is stored, how much of it is garbage, and how fast it grows (S12)."""
    rows = yield Statement("measure", (clock, MEASURE_MAX, RATE_WINDOW_US))
    return Measures(*rows[0])
