"""The gauges of a store: how many keys are open and for how long, how much is stored, what is late.

Every process would report the same figures, so one process reads them: `oncekey exporter`. It lists
the store's open keys once, and after that only what was claimed since; each open key is looked at
again until it ends. So the number of unknown keys and the oldest pending one are complete, and a
reading costs what is open and what is new, not what is stored. Must not know any client library.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncekey.core.commands import Look, Seen
from oncekey.core.record import Record, State
from oncekey.core.search import NEWEST, Page, Query
from oncekey.core.state_machine import state_now
from oncekey.core.store import Unfinished
from oncekey.engine.background.watchlist import LOOKS, MARGIN_US, PAGE
from oncekey.engine.keys.administration import Plan, StoreCall
from oncekey.engine.keys.store_stats import Stats, stats_of
from oncekey.stores.outbox_commands import OutboxCounts

OPEN_KEYS_MAX: Final = 20_000
LOOKS_MAX: Final = 5_000  # per reading; those that were not looked at for longest come first

_OPEN: Final = (State.PENDING, State.UNKNOWN)


class Reading(NamedTuple):
    """One reading of a store. `complete`: every open key is among those that are watched. `outbox`
    is None if the store has none."""

    stats: Stats
    unknown_oldest: float
    complete: bool
    outbox: OutboxCounts | None = None


class StoreWatch:
    """The open keys of one store, from reading to reading."""

    def __init__(self) -> None:
        self._open: dict[bytes, Record] = {}
        self._after = 0

    def read(self) -> Plan[Reading]:
        """Read the store's figures."""
        now = yield from self._list_new()
        now = yield from self._look_again(now)
        measures = yield StoreCall("measure")
        newest = yield StoreCall("search", (Query(expired=True), 1, NEWEST))
        records = tuple(self._open.values())
        stats = stats_of(measures, newest, Page(records, now, len(records), None))
        unknown = [r.fence for r in records if state_now(r, now) is State.UNKNOWN]
        oldest = (now - min(unknown)) / 1_000_000 if unknown else 0.0
        return Reading(stats, max(oldest, 0.0), len(records) < OPEN_KEYS_MAX)

    def _list_new(self) -> Plan[int]:
        """Watch what was claimed since the last reading. Returns the store's clock."""
        while True:
            found: Unfinished = yield StoreCall("unfinished", (self._after, PAGE))
            for record in found.records:
                if state_now(record, found.now) in _OPEN and (
                    len(self._open) < OPEN_KEYS_MAX or record.id in self._open
                ):
                    # To the end, so that `_look_again` begins with those it knows from before.
                    self._open.pop(record.id, None)
                    self._open[record.id] = _light(record)
            if len(found.records) < PAGE:
                self._after = max(self._after, found.now - MARGIN_US)
                return found.now
            self._after = found.records[-1].fence

    def _look_again(self, now: int) -> Plan[int]:
        """Forget those that have ended. Returns the store's clock."""
        ids = list(self._open)[:LOOKS_MAX]
        for start in range(0, len(ids), LOOKS):
            part = ids[start : start + LOOKS]
            replies = yield StoreCall("apply", ([Look(id) for id in part],))
            for id, seen in zip(part, replies, strict=True):
                if isinstance(seen, Exception):
                    raise seen
                assert isinstance(seen, Seen)
                now = seen.now
                self._open.pop(id)
                if seen.record is not None and state_now(seen.record, now) in _OPEN:
                    self._open[id] = _light(seen.record)
        return now


def _light(record: Record) -> Record:
    return record._replace(steps=(), body=b"")


class Gauge(NamedTuple):
    """One figure as Prometheus gets it."""

    name: str
    text: str
    value: float
    quantile: str = ""


# Name without its prefix, what it says, and how it is read off the figures.
_TEXTS: Final = {
    "pending": "Keys in flight",
    "pending_oldest_seconds": "For how long the oldest pending key has been claimed",
    "unknown": "Keys whose outcome nobody knows; each waits for a decision",
    "unknown_oldest_seconds": "For how long the oldest unknown key has been claimed",
    "open_complete": "1 if every open key is counted, 0 if there are too many to watch",
    "rows": "Records that are stored, as the store estimates it",
    "bytes": "Bytes that they take, as the store estimates it",
    "claims_per_second": "Keys claimed in the last minute, per second",
    "projected_rows": "Rows that this rate leads to, each staying as long as the newest one",
    "expired": "Records that could be swept and were not yet, counted up to 10000",
    "expired_oldest_seconds": "For how long the oldest of them has waited for the sweeper",
    "lock_waits": "Sessions of the database that wait for a lock",
}
PREFIX: Final = "oncekey_store_"
_OUTBOX_TEXTS: Final = {
    "oncekey_outbox_waiting": "Messages of the outbox that are not sent yet",
    "oncekey_outbox_oldest_seconds": "For how long the oldest of them has waited",
    "oncekey_outbox_parked": "Messages of the outbox that were refused too often",
}
PENDING_AGE: Final = PREFIX + "pending_age_seconds"
UP: Final = PREFIX + "up"
READ_SECONDS: Final = PREFIX + "read_seconds"
READ_AT: Final = PREFIX + "read_timestamp_seconds"


def gauges_of(reading: Reading) -> list[Gauge]:
    """The figures of one reading."""
    stats = reading.stats
    values = {
        "pending": stats.pending,
        "pending_oldest_seconds": stats.pending_oldest,
        "unknown": stats.unknown,
        "unknown_oldest_seconds": reading.unknown_oldest,
        "open_complete": int(reading.complete),
        "rows": stats.rows,
        "bytes": stats.bytes,
        "claims_per_second": stats.claims_per_second,
        "projected_rows": stats.projected_rows,
        "expired": stats.due,
        "expired_oldest_seconds": stats.oldest_due,
        "lock_waits": stats.lock_waits,
    }
    gauges = [Gauge(PREFIX + name, _TEXTS[name], float(value)) for name, value in values.items()]
    text = "How long the pending keys have been claimed: the age that this share does not exceed"
    ages = {"0.5": stats.pending_p50, "0.95": stats.pending_p95, "0.99": stats.pending_p99}
    gauges += [Gauge(PENDING_AGE, text, age, share) for share, age in ages.items()]
    return gauges + _outbox_gauges(reading.outbox)


def _outbox_gauges(counts: OutboxCounts | None) -> list[Gauge]:
    if counts is None:
        return []
    values = (counts.waiting, counts.oldest / 1_000_000, counts.parked)
    named = zip(_OUTBOX_TEXTS.items(), values, strict=True)
    return [Gauge(name, text, float(value)) for (name, text), value in named]


GAUGE_NAMES: Final = (
    *(PREFIX + name for name in _TEXTS),
    *_OUTBOX_TEXTS,
    PENDING_AGE,
    UP,
    READ_SECONDS,
    READ_AT,
)
