"""The history of one key: who held it when, how each grant ended, and in which generation.

A generation is the life of a record from a fresh claim to its expiry; the first grant of one has
attempt number 1. Owns the reading of the log; the rules are in checker.py.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.hammer.command_log import BODY, RESULT, Entry
from tests.support.hammer.lost_replies import resolve_failures

from oncekey.core.record import State

FINAL = (State.SUCCEEDED, State.FAILED)


@dataclass
class Grant:
    """One owner's hold on the key under one fence."""

    owner: str
    fence: int
    attempt: int
    fingerprint: str
    retry_safe: bool
    sent: int
    came: int
    until: int
    taken_over: bool = False
    generation: int = 0
    closing_sent: int | None = None  # when its owner first sent a finish or a release


@dataclass(frozen=True, slots=True)
class FinalOutcome:
    """A final outcome that is stored, by a reply that somebody got."""

    fence: int
    state: int
    body: str
    by: str
    sent: int
    came: int


@dataclass
class KeyHistory:
    """All that the logs say of one key."""

    key: str
    entries: list[Entry]  # of commands
    bodies: list[Entry] = field(default_factory=list)
    results: list[Entry] = field(default_factory=list)
    leases: dict[int, int] = field(default_factory=dict)  # fence: the latest end of its lease
    notes: set[str] = field(default_factory=set)  # of every decision that was sent
    grants: list[Grant] = field(default_factory=list)  # by fence
    outcomes: dict[int, list[FinalOutcome]] = field(default_factory=dict)  # by fence
    freed: dict[int, int] = field(default_factory=dict)  # fence: first sent
    unknown: dict[int, int] = field(default_factory=dict)  # fence: first sent
    certain: bool = (
        True  # False if a command failed and may have been applied: some grants may be missing
    )
    _by_fence: dict[int, Grant] = field(default_factory=dict)
    _sent_from: list[int] = field(default_factory=list)  # the earliest sent from here on
    _superseded: list[int] = field(default_factory=list)  # when a later grant was first known

    def grant(self, fence: int) -> Grant | None:
        return self._by_fence.get(fence)

    def holders(self, sent: int, came: int) -> list[Grant]:
        """Every grant that may have been the last one at some moment from `sent` to `came`."""
        first = bisect_left(self._superseded, sent)
        last = bisect_right(self._sent_from, came)
        return [grant for grant in self.grants[first:last] if grant.sent <= came]

    def index(self) -> None:
        """Build the indexes, once all grants are there."""
        sent = superseded = sys.maxsize
        for grant in reversed(self.grants):
            self._by_fence[grant.fence] = grant
            self._superseded.append(superseded)
            superseded = min(superseded, grant.came)
            sent = min(sent, grant.sent)
            self._sent_from.append(sent)
        self._superseded.reverse()
        self._sent_from.reverse()


def histories(entries: Iterable[Entry], keep: int) -> list[KeyHistory]:
    """The histories of all keys in the log."""
    by_key: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_key[entry.key].append(entry)
    made = []
    for key, some in by_key.items():
        commands = [entry for entry in some if entry.verb not in (BODY, RESULT)]
        known, certain = resolve_failures(commands, keep)
        history = KeyHistory(key, sorted(known, key=lambda entry: entry.came), certain=certain)
        history.bodies = [entry for entry in some if entry.verb == BODY]
        history.results = [entry for entry in some if entry.verb == RESULT]
        # From the log as it is: a repeat counts from when it was sent itself.
        history.leases = _ends_of_leases(commands)
        history.notes = {entry.note for entry in commands if entry.verb == "Resolve"}
        _find_grants(history)
        _find_endings(history)
        _number_generations(history)
        made.append(history)
    return made


def _ends_of_leases(commands: Iterable[Entry]) -> dict[int, int]:
    """Until when the owner of each fence may believe that it holds the key, by its last reply."""
    ends: dict[int, int] = {}
    for entry in commands:
        fence = 0
        if entry.verb == "Claim" and entry.reply == "Claimed":
            fence = entry.given_fence
        elif entry.verb == "Renew" and entry.reply == "Done":
            fence = entry.fence
        if fence:
            ends[fence] = max(ends.get(fence, 0), entry.sent + entry.lease)
    return ends


def _find_grants(history: KeyHistory) -> None:
    grants: dict[tuple[str, int], Grant] = {}
    for entry in history.entries:
        if entry.verb == "Claim" and entry.reply == "Claimed":
            grant = grants.get((entry.owner, entry.given_fence))
            if grant is None:
                grant = grants[entry.owner, entry.given_fence] = Grant(
                    entry.owner,
                    entry.given_fence,
                    entry.given_attempt,
                    entry.fingerprint,
                    entry.retry_safe,
                    entry.sent,
                    entry.came,
                    entry.sent + entry.lease,
                )
            grant.sent = min(grant.sent, entry.sent)
            grant.until = max(grant.until, entry.sent + entry.lease)
            grant.taken_over = grant.taken_over or entry.taken_over
    for entry in history.entries:
        if entry.verb == "Renew" and entry.reply == "Done":
            held = grants.get((entry.owner, entry.fence))
            if held is not None:
                held.until = max(held.until, entry.sent + entry.lease)
        if entry.verb in ("Finish", "Release"):
            for held in grants.values():
                if held.owner == entry.owner and entry.fence in (0, held.fence):
                    earlier = held.closing_sent
                    held.closing_sent = entry.sent if earlier is None else min(earlier, entry.sent)
    history.grants = sorted(grants.values(), key=lambda grant: grant.fence)
    history.index()


def _find_endings(history: KeyHistory) -> None:
    owners: dict[str, list[Grant]] = defaultdict(list)
    for grant in history.grants:
        owners[grant.owner].append(grant)
    for entry in history.entries:
        if entry.verb == "Claim" and entry.reply == "Unknown":
            _first(history.unknown, entry.given_fence, entry.sent)
        if entry.reply != "Done":
            continue
        if entry.verb in ("Finish", "Resolve") and entry.state in FINAL:
            by = entry.owner or entry.note
            some = history.outcomes.setdefault(entry.fence, [])
            if not any(old.by == by and old.body == entry.body for old in some):
                some.append(
                    FinalOutcome(entry.fence, entry.state, entry.body, by, entry.sent, entry.came)
                )
        elif entry.verb == "Finish":
            _first(history.unknown, entry.fence, entry.sent)
        elif entry.verb == "Resolve":
            _first(history.freed, entry.fence, entry.sent)
        elif entry.verb == "Release":
            # A release without a fence frees the last grant of its owner.
            granted = [grant.fence for grant in owners[entry.owner] if grant.sent <= entry.came]
            for fence in [entry.fence] if entry.fence else granted[-1:]:
                _first(history.freed, fence, entry.sent)


def _first(times: dict[int, int], fence: int, sent: int) -> None:
    times[fence] = min(times.get(fence, sent), sent)


def _number_generations(history: KeyHistory) -> None:
    generation = 0
    for grant in history.grants:
        generation += grant.attempt == 1
        grant.generation = generation
