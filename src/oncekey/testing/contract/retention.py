"""Store tests of keep, audit, history and the sweeper (S7, I11, I12)."""

from __future__ import annotations

import pytest

from oncekey.core.commands import Claimed, Done, Lost, Mismatched, Replay, Unknown
from oncekey.core.record import State
from oncekey.testing.contract.store_case import (
    ABSENT,
    AUDIT,
    FAILED,
    KEEP,
    LEASE,
    OTHER_FINGERPRINT,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
    HeldClaim,
    StoreCase,
    claim,
    token,
)

EVERY_STATE = [ABSENT, PENDING, SUCCEEDED, FAILED, UNKNOWN]


class Retention:
    @pytest.mark.parametrize("state", EVERY_STATE)
    def test_i12_the_sweeper_takes_a_record_after_its_audit_and_never_before(
        self, case: StoreCase, state: State
    ) -> None:
        """A store may decide at the claim when to look; then it sweeps up to one lease late."""
        held = case.key_in(state, keep_unknown=KEEP)
        record = case.record(held.id)
        while (left := record.audit_until - case.now()) > 1:
            assert case.store.sweep() == 0
            assert case.record(held.id) == record
            case.wait(max(1, left * 3 // 4))
        assert case.store.sweep() == 0
        case.wait(1 + LEASE)
        case.wait_for_sweeper()
        assert case.store.sweep() == 1
        assert case.seen(held.id).record is None

    def test_i12_a_renewed_claim_is_never_swept(self, case: StoreCase) -> None:
        held = case.claimed(lease=LEASE, keep=1, audit=0)
        for _ in range(4):
            case.wait(LEASE - 1)
            assert case.store.sweep() == 0
            case.expect(Done, held.renew())
        case.expect(Done, held.finish())

    def test_i12_a_swept_owner_is_lost(self, case: StoreCase) -> None:
        held = case.claimed(keep=1, audit=0, keep_unknown=1)
        case.wait(LEASE + 1)
        case.wait_for_sweeper()
        assert case.store.sweep() == 1
        assert case.unchanged_by(*held.owner_commands()) == [Lost()] * 5

    def test_s7_a_sweep_removes_at_most_its_limit(self, case: StoreCase) -> None:
        for _ in range(10):
            case.key_in(SUCCEEDED, keep=1, audit=0)
        live = case.key_in(SUCCEEDED)
        case.wait(LEASE + 1)
        if case.limits.sweep_lag:
            pytest.skip("this store removes whole slots")
        assert [case.store.sweep(4) for _ in range(4)] == [4, 4, 2, 0]
        assert case.record(live.id).state is SUCCEEDED

    def test_s7_the_limit_counts_history_and_records_together(self, case: StoreCase) -> None:
        for _ in range(3):
            held = case.key_in(SUCCEEDED, keep=1, audit=10)
            case.wait(1)
            second = case.expect(Claimed, held.rival(keep=1, audit=10, keep_unknown=1))
            assert second.attempt == 1
        case.wait(LEASE * 2)
        case.wait_for_sweeper()
        removed = [case.store.sweep(2) for _ in range(4)]
        # A store without a history has only its three records to give.
        expected = [2, 2, 2, 0] if hasattr(case.store, "history") else [2, 1, 0, 0]
        if case.limits.sweep_lag:
            expected = [sum(expected)]
            removed = [sum(removed)]
        assert removed == expected

    @pytest.mark.parametrize("batch", [1, 3])
    def test_i6_the_fence_grows_across_a_sweep_and_a_clock_that_stepped_back(
        self, case: StoreCase, batch: int
    ) -> None:
        """The clock steps back by more than keep and audit: only the highest fence is left."""
        ids = [case.key_in(SUCCEEDED).id for _ in range(batch)]
        highest = max(case.record(id).fence for id in ids)
        for _ in range(2):
            case.wait(KEEP + AUDIT + LEASE)
            case.wait_for_sweeper()
            while case.store.sweep():
                pass
            assert [case.seen(id).record for id in ids] == [None] * batch
            case.wait(-30 * (KEEP + AUDIT + LEASE))
            claims = [claim(id, token("own")) for id in ids]
            for asked, reply in zip(claims, case.send_all(*claims), strict=True):
                assert isinstance(reply, Claimed)
                assert reply.fence > highest
                held = HeldClaim(case, asked.id, asked.owner, reply.fence)
                assert case.record(asked.id).fence == held.fence
                assert case.record(asked.id).lease_until == case.now() + LEASE
                case.expect(Done, held.finish())
            highest = max(case.record(id).fence for id in ids)

    def test_an_expired_record_stays_readable_through_its_audit(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED, body=b"answer")
        case.wait(KEEP + AUDIT - 1)
        assert case.record(held.id).body == b"answer"

    def test_i11_a_key_used_for_ever_leaves_a_bounded_trail(self, case: StoreCase) -> None:
        terms = {"keep": 1, "audit": 0, "keep_unknown": 1}
        held = case.claimed(**terms)
        for _ in range(20):
            case.wait(LEASE + 1)
            case.expect(Claimed, held.rival(**terms))
        case.wait(LEASE + 1)
        case.wait_for_sweeper()
        assert case.store.sweep(100) == 1
        assert case.store.sweep(100) == 0


class UndecidedKeys:
    """An operation of unknown outcome stays unknown until somebody decides: a crash on Friday that
    is retried on Monday does not run again, whatever was swept in between."""

    @pytest.mark.parametrize("met", [True, False], ids=["met on Friday", "met by nobody"])
    @pytest.mark.parametrize("sweeps", [0, 1, 12], ids=["unswept", "swept", "swept all weekend"])
    def test_what_crashed_on_friday_is_not_run_again_on_monday(
        self, case: StoreCase, met: bool, sweeps: int
    ) -> None:
        held = case.key_in(UNKNOWN) if met else case.claimed()
        if not met:
            case.wait(LEASE)
        before = case.record(held.id)
        ended = [case.key_in(SUCCEEDED) for _ in range(3)]
        for _ in range(max(sweeps, 1)):
            case.wait(3 * 86_400 * SECOND // max(sweeps, 1))
            while sweeps and case.store.sweep():
                pass
        assert case.record(held.id) == before
        assert held.id in [record.id for record in case.store.unfinished(0, 10).records]
        assert case.expect(Unknown, held.rival()).record.fence == held.fence
        assert case.expect(Unknown, held.rival(retry_safe=True)).record.fence == held.fence
        assert case.expect(Mismatched, held.rival(fingerprint=OTHER_FINGERPRINT))
        if sweeps == 12:
            assert [case.seen(one.id).record for one in ended] == [None] * 3
        case.expect(Done, held.finish(body=b"the late owner's"))
        assert case.expect(Replay, held.rival()).body == b"the late owner's"
        self.is_swept_in_the_end(case, held)

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
    def test_an_unknown_key_expires_and_is_swept_once_it_is_decided(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(UNKNOWN)
        for _ in range(12):
            case.wait(10 * KEEP)
            case.store.sweep()
        case.expect(Done, held.resolve(state))
        if state is not ABSENT:
            case.expect(Replay, held.rival())
        self.is_swept_in_the_end(case, held)

    def test_a_retry_safe_claim_of_a_dead_owner_expires_by_keep(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE + KEEP)
        assert case.expect(Claimed, held.rival()).attempt == 1

    def test_keep_unknown_bounds_how_long_an_unknown_key_stays(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN, keep_unknown=KEEP)
        case.wait(KEEP - 1)
        case.expect(Unknown, held.rival())
        case.wait(1)
        assert held.id not in [record.id for record in case.store.unfinished(0, 10).records]
        assert case.expect(Claimed, held.rival()).attempt == 1

    def test_a_long_sweep_is_not_held_up_by_what_it_must_leave(self, case: StoreCase) -> None:
        undecided = [case.claimed() for _ in range(5)]
        ended = [case.key_in(SUCCEEDED) for _ in range(2)]
        case.wait(LEASE + KEEP + AUDIT)
        case.wait_for_sweeper()
        removed = [case.store.sweep(2) for _ in range(3)]
        assert sum(removed) == 2
        assert removed[-1] == 0
        assert [case.seen(one.id).record for one in ended] == [None] * 2
        for held in undecided:
            case.expect(Unknown, held.rival())

    def is_swept_in_the_end(self, case: StoreCase, held: HeldClaim) -> None:
        for _ in range(30):
            case.wait(KEEP + AUDIT + LEASE)
            case.store.sweep()
        assert case.seen(held.id).record is None


class History:
    @pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
    def test_a_new_generation_archives_the_old_one(self, case: StoreCase, state: State) -> None:
        held = case.key_in(state, body=b"old answer", keep_unknown=KEEP)
        old = case.record(held.id)
        case.wait(old.expires_at - case.now())
        assert case.history(held.id) == []
        case.expect(Claimed, held.rival())
        assert case.history(held.id) == [old]

    def test_generations_are_archived_oldest_first(self, case: StoreCase) -> None:
        held = case.claimed(keep_unknown=KEEP)
        records = []
        for number in range(3):
            record = case.record(held.id)
            records.append(record)
            case.wait(record.expires_at - case.now())
            again = case.expect(Claimed, held.rival(keep_unknown=KEEP))
            assert again.attempt == 1, number
        past = case.history(held.id)
        assert past == records
        assert [old.fence for old in past] == sorted(old.fence for old in past)

    def test_a_released_record_and_an_audited_record_are_not_archived(
        self, case: StoreCase
    ) -> None:
        freed, old = case.key_in(ABSENT), case.key_in(SUCCEEDED)
        case.wait(KEEP)
        case.expect(Claimed, freed.rival())
        case.wait(AUDIT)
        case.expect(Claimed, old.rival())
        assert case.history(freed.id) == case.history(old.id) == []

    def test_a_takeover_is_the_same_generation(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        case.expect(Claimed, held.rival(retry_safe=True))
        assert case.history(held.id) == []

    def test_s7_the_archive_is_swept_at_the_end_of_its_audit(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED)
        old = case.record(held.id)
        case.wait(KEEP)
        case.expect(Claimed, held.rival())
        case.wait(old.audit_until - case.now() - 1)
        assert case.store.sweep() == 0
        assert case.history(held.id) == [old]
        case.wait(1)
        case.store.sweep()
        assert case.history(held.id) == []
