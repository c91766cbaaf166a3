"""What two stores say together: lists, searches, elections, sweeps, measures, the guarantee.

The two have mostly the same records. A list of both is as long as it is complete in both, and has
each record once, as it stands in the store that leads. Programs, as in dual_program.py.
"""

from __future__ import annotations

from oncekey.core.commands import Look
from oncekey.core.guarantees import ClockClass, Guarantee
from oncekey.core.move_marks import MARK_ID
from oncekey.core.moved_records import latest
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query, page_of
from oncekey.core.store import Unfinished
from oncekey.stores.move.side_by_side import NEW, OLD, Call, Program, result_of

_CLOCKS = (ClockClass.HOST, ClockClass.SERVER, ClockClass.SERVER_LEASE)  # from weak to strong


def weaker(old: Guarantee, new: Guarantee) -> Guarantee:
    """What both stores promise: no more than the weaker one."""
    weak = old if old.level <= new.level else new
    where = "old" if weak is old else "new"
    clock = min(old.clock, new.clock, key=_CLOCKS.index)
    return Guarantee(
        weak.level, f"moving between two stores; the {where} one: {weak.reason}", clock
    )


def unfinished(after: int, limit: int) -> Program[Unfinished]:
    """The unfinished records of both (S10)."""
    old = result_of((yield Call(OLD, "unfinished", (after, limit))))
    new = result_of((yield Call(NEW, "unfinished", (after, limit))))
    # A list that was cut is complete up to the fence of its last record.
    ends = [
        listed.records[-1].fence
        for listed in (old, new)
        if listed.records and len(listed.records) >= limit
    ]
    found: dict[bytes, Record] = {}
    for record in (*old.records, *new.records):
        known = found.get(record.id)
        if (known is None or known.fence <= record.fence) and record.id != MARK_ID:
            found[record.id] = record
    kept = [record for record in found.values() if not ends or record.fence <= min(ends)]
    kept.sort(key=lambda record: (record.fence, record.id))
    return Unfinished(tuple(kept), min(old.now, new.now))


def search(query: Query, limit: int, after: Cursor) -> Program[Page]:
    """A page of the records of both (S11), each from the store that leads."""
    pages: list[Page] = []
    for side in (OLD, NEW):
        pages.append(result_of((yield Call(side, "search", (query, limit, after)))))
    ends = [page.next for page in pages if page.next is not None]
    last = max(ends) if ends else None
    found = [
        {record.id: record for record in page.records if last is None or _place(record) >= last}
        for page in pages
    ]
    ids = [id for id in dict.fromkeys([*found[OLD], *found[NEW]]) if id != MARK_ID]
    looks = [Look(id) for id in ids]
    olds = result_of((yield Call(OLD, "apply", (looks,)))) if looks else []
    news = result_of((yield Call(NEW, "apply", (looks,)))) if looks else []
    kept = []
    for id, old, new in zip(ids, olds, news, strict=True):
        side = OLD if latest(old, new) is old else NEW
        if id in found[side]:
            kept.append(found[side][id])
    kept.sort(key=_place, reverse=True)
    # A store whose page goes further than this one has looked at more than is counted here.
    looked_at = max(page.looked_at for page in pages if page.next == last)
    places = [looked_at] * len(kept)
    return page_of(kept, places, last, min(page.now for page in pages), looked_at, limit)


def _place(record: Record) -> Cursor:
    return Cursor(record.fence, record.id)


def history(id: bytes) -> Program[list[Record]]:
    """The past generations that either store has."""
    past: dict[int, Record] = {}
    for side in (OLD, NEW):
        for record in result_of((yield Call(side, "history", (id,)))):
            past[record.fence] = record
    return [past[fence] for fence in sorted(past)]


def sweep(limit: int) -> Program[int]:
    """Sweep both; how many the one removed from which more were removed, since most are in both."""
    old: int = result_of((yield Call(OLD, "sweep", (limit,))))
    new: int = result_of((yield Call(NEW, "sweep", (limit,))))
    return max(old, new)


def elect(token: bytes, lease: int) -> Program[bool]:
    """True if both stores elect this token: others may know only one of them."""
    if not result_of((yield Call(OLD, "elect", (token, lease)))):
        return False
    elected = yield Call(NEW, "elect", (token, lease))
    if elected is not True and lease > 0:
        yield Call(OLD, "elect", (token, 0))  # resign, since the work is another one's
    return bool(result_of(elected))


def measure() -> Program[Measures]:
    """The larger of both figures, since most records are in both."""
    old: Measures = result_of((yield Call(OLD, "measure")))
    new: Measures = result_of((yield Call(NEW, "measure")))
    oldest = min([one.oldest_due for one in (old, new) if one.oldest_due], default=0)
    larger = [max(pair) for pair in zip(old, new, strict=True)]
    return Measures(*larger)._replace(now=min(old.now, new.now), oldest_due=oldest)
