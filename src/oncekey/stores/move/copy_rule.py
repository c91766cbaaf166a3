"""The rule of a copy: what the old store has of a key, the new one gets, unless it knows better.

A generator as those of dual_program.py, so that a page of records is copied in the same batches.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from typing import Any

from oncekey.core.commands import Adopt, Done, Seen
from oncekey.core.errors import OncekeyError
from oncekey.core.moved_records import is_same_claim, is_same_version, leading
from oncekey.core.record import State
from oncekey.core.store import RecordTooLarge
from oncekey.stores.move.dual_program import look_both
from oncekey.stores.move.side_by_side import NEW, Ask, Program, result_of, run_side_by_side


class CopyResult(enum.Enum):
    """What became of a record that was to be copied."""

    COPIED = "copied"
    THERE = "there already"
    NEWER = "newer there"
    HELD = "held in the old store only"
    TOO_LARGE = "too large for the new store"


def copy_record(id: bytes) -> Generator[Ask, Any, CopyResult | OncekeyError]:
    """Give the new store what the old one has of a key. A claim that is alive in the old store only
    is left alone: its owner is about to claim the key in the new one too, unless it does not know
    the new one, and then nothing may be copied."""
    old, new = yield from look_both(id)
    for seen in (old, new):
        if isinstance(seen, OncekeyError):
            return seen
    if old.record is None or is_same_version(old, new):
        is_there = old.record is None or new.record is not None
        if is_there or old.now >= old.record.audit_until:
            return CopyResult.THERE
    elif leading(old, new) is NEW:
        return CopyResult.NEWER
    elif _is_held(old) and not is_same_claim(old, new):
        return CopyResult.HELD
    adopted = yield Ask(NEW, Adopt(old.record, old.now))
    if isinstance(adopted, OncekeyError):
        return adopted
    return CopyResult.COPIED if isinstance(adopted, Done) else CopyResult.NEWER


def _is_held(seen: Seen) -> bool:
    record = seen.record
    return record is not None and record.state == State.PENDING and seen.now < record.lease_until


def copy(ids: Sequence[bytes]) -> Program[list[CopyResult | RecordTooLarge]]:
    """Copy the records of these ids, all in the same batches. What the new store cannot hold is
    left where it is."""
    results: dict[int, Any] = {}
    yield from run_side_by_side({i: copy_record(id) for i, id in enumerate(ids)}, results)
    for result in results.values():
        if not isinstance(result, RecordTooLarge):
            result_of(result)
    return [results[i] for i in range(len(ids))]
