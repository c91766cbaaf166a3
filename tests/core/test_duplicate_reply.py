"""The reply to a duplicate, derived from that to another claim, is the state machine's reply."""

from __future__ import annotations

from itertools import product

from oncekey.core.commands import Busy, Claim, Claimed, Done, Lost, Mismatched
from oncekey.core.record import Record, State, Step
from oncekey.core.state_machine import decide, reply_to_duplicate

NOW, LEASE, KEEP = 1_000, 10, 50
ID = b"i" * 16
FINGERPRINTS = (b"\x01same", b"\x01other", b"\x02new way")
STEPS = (Step("a", True, b"", 1),)


def claim(owner: bytes, fingerprint: bytes, retry_safe: bool) -> Claim:
    return Claim(ID, owner, fingerprint, LEASE, KEEP, KEEP, retry_safe)


def records() -> list[Record | None]:
    """A record in every state: held, over, expired; with steps and without; of either owner."""
    found: list[Record | None] = [None]
    for state, lease_until, retry_safe, steps, owner in product(
        State, (NOW - KEEP - 1, NOW - 1, NOW + 5), (False, True), ((), STEPS), (b"first", b"owner")
    ):
        ended = state not in (State.ABSENT, State.PENDING)
        found.append(
            Record(
                ID,
                state,
                FINGERPRINTS[0],
                owner,
                7,
                2,
                retry_safe,
                1,
                lease_until,
                lease_until if ended else 0,
                KEEP,
                KEEP,
                "",
                "",
                "",
                steps,
                b"body",
                "",
            )
        )
    return found


def test_i7_a_duplicate_gets_the_reply_that_the_state_machine_would_give() -> None:
    derived = 0
    for record, first, second, safe, also in product(
        records(), FINGERPRINTS, FINGERPRINTS, (False, True), (False, True)
    ):
        if record is not None and record.owner == b"first" and first != record.fingerprint:
            continue  # an owner has one request
        leader = claim(b"first", first, safe)
        duplicate = claim(b"second", second, also)
        reply, write, _ = decide(record, leader, NOW)
        shared = reply_to_duplicate(leader, reply, duplicate)
        if shared is None:
            continue
        derived += 1
        decision = decide(record if write is None else write, duplicate, NOW)
        assert decision.reply == shared, (record, leader, duplicate)
        assert decision.write is None
    assert derived > 1_000


def test_a_duplicate_of_the_same_request_always_gets_a_reply() -> None:
    """Otherwise the claims of a herd would be sent one by one. Only Lost, the reply to a late copy,
    says nothing about others."""
    for record, safe in product(records(), (False, True)):
        leader = claim(b"first", FINGERPRINTS[0], safe)
        reply = decide(record, leader, NOW).reply
        shared = reply_to_duplicate(leader, reply, claim(b"second", FINGERPRINTS[0], safe))
        assert (shared is None) == isinstance(reply, Lost)


def test_a_reply_that_does_not_cover_another_request_is_not_shared() -> None:
    """A caller's transaction may hold the key, and nobody outside has seen its request."""
    leader, other = (claim(b"o", fingerprint, False) for fingerprint in FINGERPRINTS[:2])
    assert reply_to_duplicate(leader, Busy(5), leader) == Busy(5)
    assert reply_to_duplicate(leader, Busy(5), other) is None
    assert reply_to_duplicate(leader, Mismatched(1), other) is None
    assert reply_to_duplicate(leader, Claimed(1, 1, ()), other) == Mismatched(1)
    assert reply_to_duplicate(leader, Done(), leader) is None
