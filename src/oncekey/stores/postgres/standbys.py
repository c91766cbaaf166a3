"""Which standbys have every commit before it is acknowledged.

This module owns the meaning of synchronous_standby_names, and which connections and slots of a
server belong to standbys. It knows no connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from oncekey.stores.replica_sightings import Replica, Sighting, shown_name

# Programs that copy the log into files. Nobody can promote a file; whoever restores one goes back
# in time knowingly.
ARCHIVERS: Final = frozenset(
    ("pg_receivewal", "pg_basebackup", "barman_receive_wal", "barman_streaming_backup")
)
# The name of a standby of which nothing is known but its slot.
SLOT_PREFIX: Final = "slot "

_COUNTED: Final = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\((.*)\)\s*", re.I | re.S)
_NAME: Final = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


class SynchronousNames(NamedTuple):
    """synchronous_standby_names: how many standbys a commit waits for, and of which names."""

    wanted: int = 0
    names: frozenset[str] = frozenset()

    @property
    def is_any(self) -> bool:
        return "*" in self.names


def parse_names(setting: str) -> SynchronousNames:
    """The server compares names without regard to case."""
    counted = _COUNTED.fullmatch(setting)
    count, listed = (int(counted[1]), counted[2]) if counted else (1, setting)
    names = frozenset(
        (quoted.replace('""', '"') if quoted else bare).casefold()
        for quoted, bare in _NAME.findall(listed)
    )
    return SynchronousNames(count, names) if names else SynchronousNames()


class Standbys(NamedTuple):
    """What a server knows of its standbys now.

    names        for which of them commits wait
    attached     every physical walsender, archivers included
    idle_slots   physical slots that nobody uses at the moment: of standbys that are cut off
    """

    names: SynchronousNames = SynchronousNames()
    attached: tuple[Replica, ...] = ()
    idle_slots: tuple[str, ...] = ()

    def seen(self, sightings: Iterable[Sighting] = ()) -> list[Replica]:
        """Everything that may be promoted, attached or not. A slot is its user's, if one is known;
        else it stands for a standby of its own."""
        used = {slot for one in _users(sightings) for slot in one.slots.split()}
        slots = [Replica(SLOT_PREFIX + slot, "", slot) for slot in self.idle_slots]
        return [
            *(one for one in self.attached if one.name not in ARCHIVERS),
            *(one for one in slots if one.slots not in used),
        ]

    def lacking(self, sightings: Sequence[Sighting]) -> list[Sighting]:
        """Those among these that may lack an acknowledged commit: commits do not wait for them, or
        only for some of those they are among."""
        used = {slot for one in (*self.attached, *_users(sightings)) for slot in one.slots.split()}
        names = ["" if _slot_of(one) in used else one.name.casefold() for one in sightings]
        known = [(name, one) for name, one in zip(names, sightings, strict=True) if name]
        members = self._members({name for name, _ in known})
        has_all = 0 < members <= self.names.wanted
        return [
            one
            for name, one in known
            if not (has_all and (self.names.is_any or name in self.names.names))
        ]

    def _members(self, known: set[str]) -> int:
        """How many standbys take turns in confirming commits."""
        attached = [one.name.casefold() for one in self.attached]
        if self.names.is_any:
            return len(attached) + len(known - set(attached))
        return sum(max(1, attached.count(name)) for name in self.names.names)

    def is_attached(self, sighting: Sighting) -> bool:
        return any(one.name == sighting.name for one in self.attached)


def _slot_of(sighting: Sighting) -> str:
    """The slot, if nothing else is known of a standby; "" if its name is."""
    is_slot = sighting.name.startswith(SLOT_PREFIX)
    return sighting.name.removeprefix(SLOT_PREFIX) if is_slot else ""


def _users(sightings: Iterable[Sighting]) -> list[Replica]:
    """The standbys that are known by their own names, and so may be known as users of slots."""
    return [one.replica for one in sightings if not _slot_of(one)]


def walsender(name: str | None, address: str | None, slot: str | None) -> Replica:
    return Replica(shown_name(name or ""), address or "", slot or "")
