"""Replicas that were seen once, and which of them a store still has to write down.

A replica that is cut off is about to be promoted, or it is gone for good; the server cannot tell
which. So a replica that was seen counts until an operator says that it is gone. Its sighting is in
the store, so that every process knows of it, also one that starts later.

Here is the rule of what is written down when, and what a process keeps in mind if it may not write.
This module knows no server and does no I/O.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import NOTE_KEPT_CHARS, NOTE_MAX_CHARS

# A sighting is written again if the last one is older than this. So a store is not written to
# whenever it looks, and the time of the last sighting is right within an hour.
SIGHTING_INTERVAL_US: Final = 3_600_000_000
# So many replicas are written down by name; any further ones share one name.
SIGHTINGS_MAX: Final = 100
OTHERS: Final = "others"
NAME_MAX_CHARS: Final = 200

_log = logging.getLogger("oncekey")


class Replica(NamedTuple):
    """A replica as a server names it; its address, if the server tells it; and the names of its
    replication slots, with spaces between them."""

    name: str
    address: str = ""
    slots: str = ""

    def __str__(self) -> str:
        more = [self.address] if self.address else []
        more += [f"slot {slot}" for slot in self.slots.split()]
        return f"{self.name!r} ({', '.join(more)})" if more else repr(self.name)


class Sighting(NamedTuple):
    """A replica that was seen: when first and when last, in microseconds of the store's clock."""

    replica: Replica
    first_seen: int
    last_seen: int

    @property
    def name(self) -> str:
        return self.replica.name

    def __str__(self) -> str:
        return f"{self.replica}, last seen {moment(self.last_seen)}"


class Forgotten(NamedTuple):
    """A replica that an operator has declared gone. `note` has a line for each time: who, when and
    why."""

    name: str
    note: str


class Remembered(NamedTuple):
    """What a store has written down about replicas, and its clock when that was read."""

    now: int = 0
    sightings: tuple[Sighting, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()


NOTHING: Final = Remembered()


def moment(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"


def forget_hint(name: str) -> str:
    """The command by which an operator says that a replica is gone."""
    return f"`oncekey guarantee --forget {shlex.quote(name)}`"


def merged(seen: Iterable[Replica]) -> list[Replica]:
    """Replicas of one name as one: nothing else tells them apart."""
    found: dict[str, Replica] = {}
    for replica in seen:
        other = found.get(replica.name, replica)
        slots = sorted({*other.slots.split(), *replica.slots.split()})
        addresses = sorted({one.address for one in (other, replica) if one.address})
        found[replica.name] = Replica(replica.name, " ".join(addresses), " ".join(slots))
    return list(found.values())


def shown_name(name: str) -> str:
    """A name of a server's choice, fit to be stored and printed."""
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable[:NAME_MAX_CHARS] or "?"


class ReplicaMemory:
    """What one process knows of replicas: what it read from the store, and what it has seen itself
    and not written down yet.

    due   what is to be written down now
    """

    def __init__(self) -> None:
        self.due: tuple[Replica, ...] = ()
        # Never changed in place, because several threads may be here.
        self._unwritten: dict[str, Sighting] = {}
        self._failure = ""

    def observe(self, seen: Iterable[Replica], remembered: Remembered) -> tuple[Sighting, ...]:
        """Replicas were seen, and the store's sightings were read. Returns all that count."""
        now, unwritten = remembered.now, self._unwritten.copy()
        known = {sighting.name: sighting for sighting in remembered.sightings}
        for one in merged(seen):
            is_beyond = one.name not in known and len(known) >= SIGHTINGS_MAX
            replica = Replica(OTHERS) if is_beyond else one
            old = known.get(replica.name)
            if old is None:
                unwritten[replica.name] = Sighting(replica, now, now)
            elif abs(now - old.last_seen) >= SIGHTING_INTERVAL_US or (
                replica.slots and replica.slots != old.replica.slots
            ):
                unwritten[replica.name] = Sighting(replica, old.first_seen, now)
            else:
                unwritten.pop(replica.name, None)
        self._unwritten = unwritten
        self.due = tuple(one.replica for one in unwritten.values())
        return tuple({**known, **unwritten}.values())

    def take_due(self) -> tuple[Replica, ...]:
        """What the caller writes down now; nobody else gets it meanwhile."""
        due, self.due = self.due, ()
        return due

    def note_written(self, replicas: Sequence[Replica]) -> None:
        """These are in the store now. From now on the store's list decides whether they count."""
        self._failure = ""
        written = {replica.name for replica in replicas}
        left = {name: one for name, one in self._unwritten.copy().items() if name not in written}
        self._unwritten = left

    def note_failure(self, replicas: Sequence[Replica], error: Exception) -> None:
        """These could not be written down. They count in this process until they are, or until it
        ends; other processes do not know of them, which is worth a warning."""
        if str(error) == self._failure:
            return
        self._failure = str(error)
        names = ", ".join(map(str, replicas))
        _log.warning(
            "replicas were seen and could not be written down in the store: %s. This process goes "
            "on with the lower guarantee; processes that start after the replica has left cannot "
            "know of it. It is tried again: %s",
            names,
            error,
        )


# --- how sightings are stored, and an operator's word ---------------------------------------------


def pack_replica(replica: Replica) -> bytes:
    return json.dumps(replica._asdict(), ensure_ascii=False).encode()


def unpack_replica(value: bytes | str) -> Replica:
    """A stored replica. A newer release may have stored more about it."""
    fields = json.loads(value)
    return Replica(*(str(fields.get(name, "")) for name in Replica._fields))


def forgetting(note: str, sighting: Sighting, *, by: str, why: str, now: int) -> str:
    """The note after a replica of this name was forgotten once more. ConfigurationError if it does
    not say who or why."""
    for name, text in (("by", by), ("why", why)):
        if not text.strip() or not text.isprintable():
            raise ConfigurationError(f"{name}= must be text on one line: it goes into the store")
    seen = f"seen {moment(sighting.first_seen)} to {moment(sighting.last_seen)}"
    line = f"{moment(now)} {by.strip()} forgot it: {why.strip()} ({seen})"
    if len(line) > NOTE_MAX_CHARS:
        raise ConfigurationError(f"by= and why= are too long: {NOTE_MAX_CHARS} characters at most")
    return f"{note}\n{line}"[-NOTE_KEPT_CHARS:].lstrip("\n")


def forgotten_in(remembered: Remembered, name: str, *, by: str, why: str) -> tuple[Sighting, str]:
    """The sighting of this name, which is to be forgotten, and the note about that.
    ConfigurationError if there is none."""
    found = [sighting for sighting in remembered.sightings if sighting.name == name]
    if not found:
        known = ", ".join(sorted(repr(one.name) for one in remembered.sightings))
        raise ConfigurationError(
            f"no replica {name!r} was seen; "
            + (f"those that were: {known}" if known else "none was")
        )
    earlier = next((one.note for one in remembered.forgotten if one.name == name), "")
    return found[0], forgetting(earlier, found[0], by=by, why=why, now=remembered.now)
