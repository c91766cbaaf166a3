"""Finds a key by what its client sent, without knowing its operation and its scope.

A store has digests of keys, not keys. So the pairs of scope and operation that were claimed lately
are collected, and the digest that the key would have under each of them is looked up by its id.
Where raw keys are stored, the column is searched as well. Both are bounded. A plan, like those of
administration.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from oncekey.core.codec import JSON
from oncekey.core.commands import Look, Seen
from oncekey.core.errors import InvalidKey, StoreUnavailable
from oncekey.core.identity import Identities, key_text
from oncekey.core.search import NEWEST, PAGE_LIMIT_MAX, Query
from oncekey.engine.batches.batch import BATCH_MAX
from oncekey.engine.keys.administration import Plan, StoreCall
from oncekey.engine.keys.key_status import KeyStatus, status_of

PAIRS_LOOKED_AT_MAX: Final = 10_000  # claims whose scopes and operations are collected
KEYS_FOUND_MAX: Final = 20

Pair = tuple[str, str]


class KeySearch(NamedTuple):
    """The keys that were found, and what was tried.

    pairs      how many pairs of scope and operation the key's digest was looked up under
    looked_at  how many claims they were collected from
    since      the fence of the oldest of these claims; None if there were no older ones
    """

    found: tuple[KeyStatus, ...]
    pairs: int
    looked_at: int
    since: int | None


def find_stored_key(key: str, scope: str | None) -> Plan[KeySearch]:
    """The keys that are stored as given, among the newest claims; needs no secret."""
    query = Query(key=key, scope=scope, expired=True)
    page = yield StoreCall("search", (query, KEYS_FOUND_MAX, NEWEST))
    found = yield from _looked_up(record.id for record in page.records)
    since = page.next.fence if page.next is not None else None
    return KeySearch(found, 0, page.looked_at, since)


def find_client_key(identities: Identities, key: str, scope: str | None) -> Plan[KeySearch]:
    """The keys that a client sent as `key`, in this scope or, with None, in any that was seen."""
    text = key_text(key)
    stored = yield from find_stored_key(text, scope)
    seen, looked_at, since = yield from _recent_pairs()
    if scope is not None:
        # Operations are few: so a scope is found whose own claims are older than those looked at.
        seen = {(scope, operation): None for _, operation in seen}
    ids = [id for pair in seen if (id := _id(identities, pair, text)) is not None]
    known = {status.id for status in stored.found}
    derived = yield from _looked_up(id for id in ids if id.hex() not in known)
    return KeySearch((*stored.found, *derived)[:KEYS_FOUND_MAX], len(seen), looked_at, since)


def _id(identities: Identities, pair: Pair, key: str) -> bytes | None:
    """The id of the key under this pair; None if the stored texts are none that a claim accepts."""
    try:
        return identities.identify(*pair, key).id
    except InvalidKey:
        return None


def _recent_pairs() -> Plan[tuple[dict[Pair, None], int, int | None]]:
    """The pairs of scope and operation of the newest claims, how many claims that were, and how
    far back they went."""
    pairs: dict[Pair, None] = {}
    looked_at, after = 0, NEWEST
    while looked_at < PAIRS_LOOKED_AT_MAX:
        page = yield StoreCall("search", (Query(expired=True), PAGE_LIMIT_MAX, after))
        looked_at += len(page.records)
        pairs.update(((record.scope, record.operation), None) for record in page.records)
        if page.next is None:
            return pairs, looked_at, None
        after = page.next
    return pairs, looked_at, after.fence


def _looked_up(ids: Iterable[bytes]) -> Plan[tuple[KeyStatus, ...]]:
    """The keys with these ids that there are."""
    left = list(ids)
    found: list[KeyStatus] = []
    while left and len(found) < KEYS_FOUND_MAX:
        batch, left = left[:BATCH_MAX], left[BATCH_MAX:]
        for seen in (yield StoreCall("apply", ([Look(id) for id in batch],))):
            if isinstance(seen, StoreUnavailable):
                raise seen
            assert isinstance(seen, Seen)
            status = status_of(seen, JSON)
            if status is not None:
                found.append(status)
    return tuple(found)
