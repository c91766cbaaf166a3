"""The loop of `oncekey copy`: copies every page, goes through all of them again to see that nothing
is missing, and ends cleanly when it is interrupted. Prints nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from oncekey.cli.signals import StopRequest
from oncekey.core.errors import ConfigurationError
from oncekey.core.search import NEWEST, Cursor
from oncekey.stores.move import DualStore
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.move.record_copy import LargeRecord, copy_page
from oncekey.stores.outbox_commands import Measure, OutboxCounts

# A process in dual mode needs a moment from its claim in the old store to that in the new one.
HELD_LOOKS: Final = 5
HELD_SECONDS: Final = 0.5

# Called after each page with the progress so far.
OnProgress = Callable[["CopyProgress"], None]


@dataclass
class CopyProgress:
    """How far a copy has come.

    counts     what became of the records of the first walk
    past       past generations sent to the history
    past_large past generations and expired records that the new store cannot hold
    checked    records that the second walk has compared
    repaired   those of them that were missing, and were copied then
    held       ids that a process holds which does not know the new store
    large      records that the new store cannot hold
    outbox     what waits in the outbox of the old store; None if it has none
    keeps_outbox  that outbox stays in use after the move
    stopped    it was interrupted; `after` is where to go on
    """

    counts: Counter[CopyResult] = field(default_factory=Counter)
    past: int = 0
    past_large: int = 0
    checked: int = 0
    repaired: int = 0
    held: tuple[bytes, ...] = ()
    large: tuple[LargeRecord, ...] = ()
    outbox: OutboxCounts | None = None
    keeps_outbox: bool = False
    stopped: bool = False
    after: Cursor | None = None

    @property
    def seen(self) -> int:
        return self.counts.total()

    @property
    def is_complete(self) -> bool:
        return not (self.stopped or self.refused)

    @property
    def refused(self) -> bool:
        """Whether something has to be done before the move may end."""
        return bool(self.held or self.large or self.past_large or self.unsent)

    @property
    def unsent(self) -> int:
        """How many messages would stay behind: those that wait, and those that are parked."""
        if self.outbox is None or self.keeps_outbox:
            return 0
        return self.outbox.waiting + self.outbox.parked


def copy_all(
    store: DualStore,
    progress: CopyProgress,
    on_progress: OnProgress,
    stop: StopRequest,
    *,
    limit: int,
    history: bool,
) -> None:
    """Copy everything from `progress.after` on, and compare everything."""
    cursor: Cursor | None = progress.after or NEWEST
    while cursor is not None and not stop.requested:
        progress.after = cursor  # so that an error leaves the place of its page
        page = copy_page(store, cursor, limit, history=history)
        progress.counts += page.counts
        progress.past += page.past
        progress.past_large += page.past_large if history else 0
        cursor = page.next
        on_progress(progress)
    if cursor is not None:
        progress.after, progress.stopped = cursor, True
        return
    _compare_all(store, progress, on_progress, stop, limit)
    if not progress.stopped:
        progress.outbox = _outbox_of(store.old)


def _outbox_of(store: Any) -> OutboxCounts | None:
    """What is in a store's outbox; None if it has none."""
    if not hasattr(store, "outbox"):
        return None
    try:
        counts: OutboxCounts = store.outbox(Measure())
    except ConfigurationError:  # its table was never made
        return None
    return counts


def _compare_all(
    store: DualStore,
    progress: CopyProgress,
    on_progress: OnProgress,
    stop: StopRequest,
    limit: int,
) -> None:
    cursor: Cursor | None = NEWEST
    held: list[bytes] = []
    large: list[LargeRecord] = []
    while cursor is not None:
        if stop.requested:
            progress.stopped = True
            return
        page = copy_page(store, cursor, limit, history=False)
        progress.checked += page.counts.total()
        progress.repaired += page.counts[CopyResult.COPIED]
        held += page.held
        large += page.large
        cursor = page.next
        on_progress(progress)
    progress.large = tuple(large)
    progress.held = _still_held(store, tuple(held))


def _still_held(store: DualStore, ids: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Those that stay held in the old store only, although their owners had the time to claim them
    in the new one too."""
    for _ in range(HELD_LOOKS):
        if not ids:
            break
        time.sleep(HELD_SECONDS)
        results = store.copy(ids)
        pairs = zip(ids, results, strict=True)
        ids = tuple(id for id, result in pairs if result is CopyResult.HELD)
    return ids
