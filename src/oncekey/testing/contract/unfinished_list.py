"""Store tests of `unfinished`: it misses nothing and lists nothing that has ended (S10).

The background completer depends on it: what is never listed is never finished (I10, I11).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncekey.core.commands import Claimed, Done
from oncekey.core.record import Record, State
from oncekey.testing.contract.store_case import (
    ABSENT,
    AUDIT,
    FAILED,
    KEEP,
    LEASE,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
    HeldClaim,
    StoreCase,
    claim,
    token,
)

ALL = 10_000
PATIENCE = 120.0


def listed(case: StoreCase, after: int = 0, limit: int = ALL) -> list[Record]:
    return list(case.store.unfinished(after, limit).records)


def ids(records: list[Record]) -> list[bytes]:
    return [record.id for record in records]


def freed_with_a_step(case: StoreCase) -> HeldClaim:
    held = case.claimed()
    case.expect(Done, held.step())
    case.expect(Done, held.release())
    return held


class ListedRecords:
    def test_s10_an_empty_store_lists_nothing_and_tells_the_time(self, case: StoreCase) -> None:
        found = case.store.unfinished(0, ALL)
        assert (found.records, found.now) == ((), case.now())

    @pytest.mark.parametrize("state", list(State))
    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_s10_pending_and_unknown_keys_are_listed(
        self, case: StoreCase, state: State, retry_safe: bool
    ) -> None:
        if state is UNKNOWN:
            held = case.claimed(retry_safe=retry_safe)
            case.expect(Done, held.finish(UNKNOWN, b"cut off"))
        else:
            held = case.key_in(state, retry_safe=retry_safe)
        assert ids(listed(case)) == ([held.id] if state in (PENDING, UNKNOWN) else [])

    def test_s10_a_record_is_listed_whole(self, case: StoreCase) -> None:
        held = case.claimed(scope="acct ä", label="zählen", key="支払い", retry_safe=True)
        case.expect(Done, held.step("größe 🎉", done=True, body=bytes(range(256))))
        case.wait(SECOND)
        case.expect(Done, held.finish(UNKNOWN, b"\x00\xffbody"))
        assert listed(case) == [case.record(held.id)]

    @pytest.mark.parametrize("retry_safe", [False, True])
    def test_i10_a_dead_owners_key_is_listed_before_and_after_somebody_met_it(
        self, case: StoreCase, retry_safe: bool
    ) -> None:
        held = case.claimed(retry_safe=retry_safe)
        case.wait(LEASE * 2)
        assert ids(listed(case)) == [held.id]
        case.send(held.rival())
        assert ids(listed(case)) == [held.id]

    @pytest.mark.parametrize("done", [False, True])
    def test_i11_a_key_freed_halfway_is_listed(self, case: StoreCase, done: bool) -> None:
        held = case.claimed()
        case.expect(Done, held.step(done=done))
        case.expect(Done, held.release())
        assert listed(case) == [case.record(held.id)]

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
    @pytest.mark.parametrize("has_steps", [False, True])
    def test_s10_a_decided_key_is_not_listed_unless_it_was_freed_halfway(
        self, case: StoreCase, state: State, has_steps: bool
    ) -> None:
        held = case.claimed()
        if has_steps:
            case.expect(Done, held.step())
        case.expect(Done, held.finish(UNKNOWN, b""))
        case.expect(Done, held.resolve(state, b""))
        assert ids(listed(case)) == ([held.id] if state is ABSENT and has_steps else [])

    @pytest.mark.parametrize("what", ["pending", "unknown", "freed halfway"])
    def test_s10_what_has_expired_is_not_listed(self, case: StoreCase, what: str) -> None:
        make: dict[str, Callable[[], HeldClaim]] = {
            "pending": case.claimed,
            "unknown": lambda: case.key_in(UNKNOWN),
            "freed halfway": lambda: freed_with_a_step(case),
        }
        held = make[what]()
        case.wait(case.record(held.id).expires_at - case.now() - 1)
        assert ids(listed(case)) == [held.id]
        case.wait(1)
        assert listed(case) == []
        case.wait(AUDIT)
        case.wait_for_sweeper()
        case.store.sweep(ALL)
        assert listed(case) == []

    def test_s10_a_renewed_key_is_listed_for_as_long_as_it_lives(self, case: StoreCase) -> None:
        held = case.claimed()
        for _ in range(3):
            case.wait(KEEP)
            case.expect(Done, held.renew())
        assert ids(listed(case)) == [held.id]

    def test_s6_a_listing_changes_nothing(self, case: StoreCase) -> None:
        helds = [case.key_in(state) for state in State] + [freed_with_a_step(case)]
        before = case.dump([held.id for held in helds])
        assert len(listed(case)) == 3
        assert case.dump([held.id for held in helds]) == before


class ListedSince:
    def test_s10_after_excludes_the_time_it_names(self, case: StoreCase) -> None:
        held = case.claimed()
        assert ids(listed(case, held.fence - 1)) == [held.id]
        assert listed(case, held.fence) == []

    def test_s10_a_key_claimed_since_the_last_listing_is_the_next_one(
        self, case: StoreCase
    ) -> None:
        first = case.claimed()
        assert ids(listed(case)) == [first.id]
        case.wait(SECOND)
        second = case.claimed()
        assert ids(listed(case, first.fence)) == [second.id]
        assert ids(listed(case)) == [first.id, second.id]

    @pytest.mark.parametrize("how", ["released", "resolved"])
    def test_i10_a_freed_key_that_is_claimed_again_is_new(self, case: StoreCase, how: str) -> None:
        """Its record keeps its age, and perhaps it was never listed."""
        held = case.claimed() if how == "released" else case.key_in(UNKNOWN)
        case.expect(Done, held.release() if how == "released" else held.resolve(ABSENT, b""))
        case.wait(LEASE)
        after = case.store.unfinished(0, ALL).now
        case.wait(SECOND)
        case.expect(Claimed, held.rival())
        assert ids(listed(case, after)) == [held.id]
        case.wait(LEASE)  # this owner dies too
        assert ids(listed(case, after)) == [held.id]

    def test_i10_a_key_that_was_taken_over_is_new(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        after = case.now() - 1
        case.expect(Claimed, held.rival(retry_safe=True))
        assert ids(listed(case, after)) == [held.id]

    @pytest.mark.parametrize("state", [PENDING, SUCCEEDED, UNKNOWN])
    def test_s10_of_a_key_claimed_anew_the_new_generation_is_listed(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state)
        case.wait(case.record(held.id).expires_at - case.now())
        case.expect(Claimed, held.rival())
        assert listed(case) == [case.record(held.id)]
        assert case.record(held.id).state is PENDING


class ListLimits:
    def test_s10_the_oldest_claims_come_first_and_reading_on_finds_the_rest(
        self, case: StoreCase
    ) -> None:
        """The key freed halfway and claimed again counts as new."""
        helds = [case.claimed()]
        again = freed_with_a_step(case)
        for _ in range(4):
            case.wait(SECOND)
            helds.append(case.claimed())
        case.wait(SECOND)
        case.expect(Claimed, again.rival())
        wanted = [held.id for held in helds] + [again.id]
        assert ids(listed(case)) == wanted
        assert ids(listed(case, limit=2)) == wanted[:2]
        assert ids(listed(case, limit=len(wanted))) == wanted
        found, after = [], 0
        for _ in wanted:
            page = listed(case, after, limit=1)
            found += ids(page)
            after = page[-1].fence
        assert found == wanted
        assert listed(case, after, limit=1) == []

    @pytest.mark.parametrize("limit", [1, 3, 30])
    def test_s10_claims_of_one_batch_are_never_cut_apart(self, case: StoreCase, limit: int) -> None:
        """They may share a fence, and a reader that goes on after it would miss the others."""
        batch = [claim(token("id"), token("own")) for _ in range(20)]
        case.store.apply(batch)
        case.wait(SECOND)
        last = case.claimed()
        page = listed(case, limit=limit)
        rest = listed(case, page[-1].fence)
        assert min(limit, 21) <= len(page)
        assert sorted(ids(page + rest)) == sorted([one.id for one in batch] + [last.id])
        assert page == sorted(page, key=lambda record: (record.fence, record.id))

    def test_s10_what_has_expired_does_not_count(self, case: StoreCase) -> None:
        """Otherwise a full page would look like the last one."""
        for _ in range(3):
            case.claimed(keep_unknown=SECOND)
        case.wait(LEASE + SECOND)
        helds = [case.claimed() for _ in range(3)]
        assert len(listed(case, limit=2)) >= 2
        assert sorted(ids(listed(case, limit=3))) == sorted(held.id for held in helds)

    def test_s10_a_limit_of_nothing_gives_nothing(self, case: StoreCase) -> None:
        case.claimed()
        assert case.store.unfinished(0, 0) == ((), case.now())

    def test_s10_few_among_many_that_have_ended(self, case: StoreCase) -> None:
        left: list[bytes] = []
        for _ in range(6):
            helds = [case.claimed() for _ in range(50)]
            done = [held.finish() for held in helds[:48]]
            assert case.send_all(*done, helds[48].release()) == [Done()] * 49
            left.append(helds[49].id)
            case.wait(SECOND)
        assert ids(listed(case)) == left
        assert ids(listed(case, limit=4)) == left[:4]

    def test_s9_many_list_while_others_claim_and_finish(self, case: StoreCase) -> None:
        """What was claimed before a listing is in it until it has ended."""
        together = threading.Barrier(6)

        def work(_: int) -> None:
            together.wait(PATIENCE)
            for _ in range(5):
                held = case.claimed()
                assert held.id in ids(listed(case, held.fence - 1))
                case.expect(Done, held.finish())
                assert held.id not in ids(listed(case))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert listed(case) == []


class UnfinishedLists(ListedRecords, ListedSince, ListLimits):
    """All tests of `unfinished`."""
