"""Store tests of claims: every rule of state_machine.CLAIM_RULES in order (S1, I5-I7, I9)."""

from __future__ import annotations

import pytest

from oncekey.core.commands import Busy, Claimed, Done, Lost, Mismatched, Replay, Unknown
from oncekey.core.record import Record, State
from oncekey.testing.contract.store_case import (
    ABSENT,
    AUDIT,
    FAILED,
    FINGERPRINT,
    KEEP,
    LEASE,
    OTHER_FINGERPRINT,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
    StoreCase,
    claim,
    token,
)


class ClaimsOfFreshKeys:
    """Claims of keys that are expired, never seen, released, or held by the same owner."""

    def test_s1_the_first_claim_gets_the_key_and_writes_all_of_it(self, case: StoreCase) -> None:
        id, owner, now = token("id"), token("own"), case.now()
        reply = case.send(claim(id, owner, scope="acct", label="charge", key="k-1"))
        assert reply == Claimed(now, 1, ())
        assert case.record(id) == Record(
            id=id, state=PENDING, fingerprint=FINGERPRINT, owner=owner, fence=now, attempt=1,
            retry_safe=False, created_at=now, lease_until=now + LEASE, finished_at=0, keep=KEEP,
            audit=AUDIT, scope="acct", label="charge", key="k-1", steps=(), body=b"", note="",
        )  # fmt: skip

    def test_i8_claims_of_different_keys_do_not_affect_each_other(self, case: StoreCase) -> None:
        first, second = case.claimed(), case.claimed()
        case.expect(Done, first.finish())
        assert case.record(second.id).state is PENDING

    def test_i9_a_repeated_claim_is_the_same_claim_with_a_full_lease(self, case: StoreCase) -> None:
        held = case.claimed()
        case.wait(SECOND)
        assert case.send(held.again()) == Claimed(held.fence, 1, ())
        assert case.record(held.id).lease_until == case.now() + LEASE

    def test_i9_a_repeated_claim_holds_after_the_lease_if_nobody_took_over(
        self, case: StoreCase
    ) -> None:
        held = case.claimed()
        case.wait(LEASE + SECOND)
        assert case.send(held.again()) == Claimed(held.fence, 1, ())
        assert case.send(held.rival()) == Busy(LEASE)

    def test_i9_a_repeated_claim_shows_the_steps_saved_since(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.step())
        assert case.expect(Claimed, held.again()).steps == case.record(held.id).steps

    def test_i9_a_claim_that_comes_after_its_own_release_is_refused(self, case: StoreCase) -> None:
        held = case.key_in(ABSENT)
        assert case.unchanged_by(held.again()) == [Lost()]

    def test_i9_a_claim_that_comes_after_its_own_finish_is_a_replay(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED)
        (reply,) = case.unchanged_by(held.again())
        assert isinstance(reply, Replay)

    def test_a_freed_key_is_free_for_another_request(self, case: StoreCase) -> None:
        held = case.key_in(ABSENT)
        created = case.record(held.id).created_at
        case.wait(SECOND)
        reply = case.expect(Claimed, held.rival(fingerprint=OTHER_FINGERPRINT))
        assert (reply.attempt, reply.taken_over) == (2, False)
        record = case.record(held.id)
        assert (record.fingerprint, record.created_at) == (OTHER_FINGERPRINT, created)

    def test_a_freed_key_with_steps_stays_bound_to_its_request(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.step())
        case.expect(Done, held.release())
        different = held.rival(fingerprint=OTHER_FINGERPRINT)
        assert case.unchanged_by(different) == [Mismatched(1)]
        assert [step.name for step in case.expect(Claimed, held.rival()).steps] == ["pay"]

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED, UNKNOWN])
    def test_i2_a_finished_key_holds_until_the_microsecond_it_expires(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state, keep_unknown=KEEP)
        case.wait(KEEP - 1)
        (reply,) = case.unchanged_by(held.rival())
        assert isinstance(reply, Unknown if state is UNKNOWN else Replay)
        case.wait(1)
        fresh = case.expect(Claimed, held.rival(fingerprint=OTHER_FINGERPRINT))
        assert (fresh.attempt, fresh.steps) == (1, ())
        assert case.record(held.id).created_at == case.now()

    def test_i11_a_dead_owners_key_is_fresh_after_lease_and_keep(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.expect(Done, held.step())
        case.wait(LEASE + KEEP)
        fresh = case.expect(Claimed, held.rival(fingerprint=OTHER_FINGERPRINT))
        assert (fresh.attempt, fresh.steps, fresh.taken_over) == (1, (), False)

    def test_i6_the_fence_is_the_stores_clock(self, case: StoreCase) -> None:
        assert case.claimed().fence == case.now()

    def test_i6_the_fence_grows_though_the_clock_steps_back(self, case: StoreCase) -> None:
        held = case.key_in(ABSENT)
        case.clock.advance(-5 * SECOND)
        assert case.expect(Claimed, held.rival()).fence == held.fence + 1

    def test_i6_the_fence_grows_over_expiry_and_deletion(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED)
        case.wait(KEEP + AUDIT + LEASE)
        case.wait_for_sweeper()
        assert case.store.sweep() == 1
        assert case.expect(Claimed, held.rival()).fence > held.fence


class ClaimsOfKnownKeys:
    """Claims of keys that are finished, unknown, held, taken over, or another request's."""

    @pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
    def test_i7_a_mismatch_is_decided_before_anything_else(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state)
        assert case.unchanged_by(held.rival(fingerprint=OTHER_FINGERPRINT)) == [Mismatched(1)]

    def test_i7_a_mismatching_claim_takes_nothing_over(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        rival = held.rival(fingerprint=OTHER_FINGERPRINT, retry_safe=True)
        assert case.unchanged_by(rival) == [Mismatched(1)]

    @pytest.mark.parametrize(("stored", "version"), [(b"\x07old", 7), (b"", 0), (b"\xff", 255)])
    def test_a_mismatch_reply_has_the_stored_fingerprints_version(
        self, case: StoreCase, stored: bytes, version: int
    ) -> None:
        held = case.claimed(fingerprint=stored)
        assert case.unchanged_by(held.rival()) == [Mismatched(version)]

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
    def test_i3_a_replay_gives_the_outcome_and_how_long_it_holds(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state, body=b"\x00answer\xff")
        for _ in range(3):
            case.wait(SECOND)
            (reply,) = case.unchanged_by(held.rival())
            left = case.record(held.id).expires_at - case.now()
            assert reply == Replay(state, b"\x00answer\xff", 1, held.fence, left)

    def test_i5_a_held_key_is_busy_until_the_microsecond_the_lease_ends(
        self, case: StoreCase
    ) -> None:
        held = case.claimed(retry_safe=True)
        assert case.unchanged_by(held.rival(retry_safe=True)) == [Busy(LEASE)]
        case.wait(LEASE - 1)
        assert case.unchanged_by(held.rival(retry_safe=True)) == [Busy(1)]
        case.wait(1)
        assert case.expect(Claimed, held.rival(retry_safe=True)).taken_over

    def test_i5_a_renewed_key_stays_busy(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE - 1)
        case.expect(Done, held.renew())
        case.wait(LEASE - 1)
        assert case.unchanged_by(held.rival(retry_safe=True)) == [Busy(1)]

    def test_a_takeover_keeps_the_story_and_changes_the_owner(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True, scope="first", label="op", key="k")
        case.expect(Done, held.step())
        before = case.record(held.id)
        case.wait(LEASE)
        rival = held.rival(retry_safe=True, keep=KEEP * 2, audit=AUDIT * 2, scope="second")
        reply = case.send(rival)
        assert reply == Claimed(case.now(), 2, before.steps, taken_over=True)
        assert case.record(held.id) == before._replace(
            owner=rival.owner,
            fence=case.now(),
            attempt=2,
            lease_until=case.now() + LEASE,
            keep=KEEP * 2,
            audit=AUDIT * 2,
        )

    @pytest.mark.parametrize(
        ("dead", "new"), [(False, False), (False, True), (True, False)], ids=str
    )
    def test_i1_unless_both_are_retry_safe_a_dead_owners_key_is_unknown(
        self, case: StoreCase, dead: bool, new: bool
    ) -> None:
        held = case.claimed(retry_safe=dead)
        before = case.record(held.id)
        case.wait(LEASE)
        reply = case.expect(Unknown, held.rival(retry_safe=new))
        assert reply.record == before._replace(state=UNKNOWN, finished_at=case.now())
        assert case.record(held.id) == reply.record

    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_i1_an_unknown_key_stays_unknown_for_everyone(
        self, case: StoreCase, retry_safe: bool
    ) -> None:
        held = case.key_in(UNKNOWN)
        case.wait(LEASE * 2)
        (reply,) = case.unchanged_by(held.rival(retry_safe=retry_safe))
        assert reply == Unknown(case.record(held.id), case.now())

    def test_i1_an_interrupted_key_is_unknown_though_it_was_retry_safe(
        self, case: StoreCase
    ) -> None:
        held = case.key_in(PENDING, retry_safe=True)
        case.expect(Done, held.finish(UNKNOWN, b"interrupted"))
        case.wait(LEASE)
        (reply,) = case.unchanged_by(held.rival(retry_safe=True))
        assert isinstance(reply, Unknown)

    def test_i6_each_takeover_has_a_higher_fence(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        fences = [held.fence]
        for attempt in (2, 3, 4):
            case.wait(LEASE)
            reply = case.expect(Claimed, held.rival(retry_safe=True))
            assert reply.attempt == attempt
            fences.append(reply.fence)
        assert fences == sorted(set(fences))
