"""Marks that a move leaves in its two stores, so that a mistake ends loudly.

A mark is a record under an id of its own, which every store has a place for. It says which move the
store takes part in, as which side, and how far it has come:

    stage       old store                                 new store
    asked       somebody wants to begin a move            -
    moving      processes use both; it may be used alone  it is being filled; it is refused alone
    copied      it was left; it is refused alone          it has everything; it may be used alone

The stages are written in this order, each by a command that changes nothing if somebody else was
faster: asked in the old store, moving in the new one, moving in the old one. So a store that says
`moving` has a partner that says so too, and any other partner is refused. `copied` is written in
the old store first: from then on nobody may begin with the old store alone, and after that
somebody may with the new one. Pure; must not know stores.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Final, NamedTuple

from oncekey.core.codec import pack_bytes, unpack
from oncekey.core.commands import Adopt, Seen
from oncekey.core.errors import ConfigurationError
from oncekey.core.moved_records import Side
from oncekey.core.record import FOREVER_US, Record, State

MARK_ID: Final = blake2b(b"oncekey: the mark of a move", digest_size=16).digest()
MARK_OPERATION: Final = "oncekey:move"
ASKED, MOVING, COPIED = "asked", "moving", "copied"
_JSON: Final = "json"
_FINGERPRINT: Final = b"\x01" + bytes(32)
_HOW: Final = "see docs/how-to/move.md"
_NOTES: Final = {
    (Side.OLD, ASKED): "a move to another store was begun",
    (Side.OLD, MOVING): "keys are being moved from here to another store",
    (Side.OLD, COPIED): "all keys were moved from here to another store",
    (Side.NEW, MOVING): "keys are being moved to here from another store",
    (Side.NEW, COPIED): "all keys were moved to here from another store",
}


class NotAlone(ConfigurationError):
    """The keys of this store are being moved, or were: it must not be used by itself. What it has
    beside its keys, its outbox, may be."""


class Mark(NamedTuple):
    """A store's part in a move: the move's own name, the side, the stage; `fence` counts the marks
    that this store has had."""

    move: str
    side: Side
    stage: str
    fence: int = 0


def mark_of(seen: Seen) -> Mark | None:
    """The mark that a store has; None if it never took part in a move."""
    if seen.record is None:
        return None
    stored = unpack(seen.record.body)
    fields = json.loads(getattr(stored, "data", b"{}"))
    try:
        side = Side[fields["side"].upper()]
        return Mark(fields["move"], side, fields["stage"], seen.record.fence)
    except (KeyError, AttributeError, TypeError):
        raise ConfigurationError(
            "the mark of a move in this store was written by another release; use that release"
        ) from None


def write_mark(mark: Mark, now: int) -> Adopt:
    """The command that writes the mark, unless the store has got another one meanwhile."""
    fields = {"move": mark.move, "side": mark.side.name.lower(), "stage": mark.stage}
    body = pack_bytes(_JSON, json.dumps(fields, sort_keys=True).encode())
    record = Record(
        id=MARK_ID,
        state=State.SUCCEEDED,
        fingerprint=_FINGERPRINT,
        # The same mark has the same owner, whoever writes it: then it is a repeat.
        owner=blake2b(body, digest_size=16).digest(),
        fence=mark.fence,
        attempt=1,
        retry_safe=False,
        created_at=now,
        lease_until=now,
        finished_at=now,
        keep=FOREVER_US,
        audit=0,
        scope="",
        label=MARK_OPERATION,
        key="",
        steps=(),
        body=body,
        note=_NOTES[mark.side, mark.stage],
    )
    return Adopt(record, now)


def check_alone(seen: Seen) -> None:
    """Raise ConfigurationError if a store must not be used by itself; `seen` is what its `bind` has
    returned."""
    if not isinstance(seen, Seen):  # a store of somebody else
        raise ConfigurationError(
            f"`bind` of this store has returned {seen!r}: a store must return Seen, with the "
            "record that it has under MARK_ID (S8 of oncekey.core.store), so that it is not used "
            "alone while keys are being moved; see docs/how-to/write-a-store.md"
        )
    mark = mark_of(seen)
    if mark is None:
        return
    if mark.side is Side.NEW and mark.stage == MOVING:
        raise NotAlone(
            "this store is still being filled from another one: used alone, it would run again "
            "what only the old one knows. Open both (moving://OLD,NEW) and run oncekey copy; "
            f"{_HOW}"
        )
    if mark.side is Side.OLD and mark.stage == COPIED:
        raise NotAlone(
            "all keys of this store were moved to another one, which may have newer outcomes by "
            f"now; open the new store; {_HOW}"
        )


def note_for_readers(seen: Seen) -> str:
    """What somebody must know who reads a store by itself, or decides keys in it; empty if it is
    all that there is. `seen` is what the store has under MARK_ID."""
    mark = mark_of(seen)
    if mark is None or (mark.side is Side.NEW and mark.stage == COPIED):
        return ""
    if mark.stage == COPIED:
        return (
            "all keys of this store were moved to another one: what is here is what was left "
            f"behind, and nobody uses it any more. Open the new store; {_HOW}"
        )
    where = "from this store to another one" if mark.side is Side.OLD else "to this store"
    return (
        f"keys are being moved {where}: this one alone may lack what counts, and a decision in it "
        f"may be lost. Open both (moving://OLD,NEW); {_HOW}"
    )


def next_mark(old: Mark | None, new: Mark | None, move: str) -> Mark | None:
    """The next mark to be written so that both stores are in the same move; None if they are. A new
    move is called `move`. Raises ConfigurationError if one of them has another partner."""
    if old is not None and old == new:  # a move has a name of its own
        raise ConfigurationError("the old and the new store are the same one")
    if _are_partners(old, new):
        assert old is not None
        return Mark(old.move, Side.OLD, MOVING, old.fence + 1) if old.stage == ASKED else None
    if old is not None and old.side is Side.OLD and old.stage == ASKED:
        _check_can_be_filled(new)
        return Mark(old.move, Side.NEW, MOVING, new.fence + 1 if new else 1)
    _check_can_be_left(old)
    _check_can_be_filled(new)
    return Mark(move, Side.OLD, ASKED, old.fence + 1 if old else 1)


def _are_partners(old: Mark | None, new: Mark | None) -> bool:
    if old is None or new is None:
        return False
    return old.move == new.move and (old.side, new.side) == (Side.OLD, Side.NEW)


def _check_can_be_left(old: Mark | None) -> None:
    if old is None or (old.side is Side.NEW and old.stage == COPIED):
        return
    if old.side is Side.NEW:
        problem = "is itself still being filled from another store; finish that move first"
    elif old.stage == COPIED:
        problem = "was already moved, to another store than this one"
    else:
        problem = "is being moved to another store than this one"
    raise ConfigurationError(f"the old store {problem}; {_HOW}")


def _check_can_be_filled(new: Mark | None) -> None:
    if new is None or (new.side is Side.OLD and new.stage in (ASKED, COPIED)):
        return
    if new.side is Side.OLD:
        problem = "is itself being moved to another store"
    else:
        problem = "belongs to a move from another store than this one"
    raise ConfigurationError(f"the new store {problem}; {_HOW}")
