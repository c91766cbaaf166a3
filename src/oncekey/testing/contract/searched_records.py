"""Store tests of `search` and `measure`: pages that miss nothing and repeat nothing (S11, S12)."""

from __future__ import annotations

import pytest

from oncekey.core.commands import Claimed, Done, Lost, Resolve
from oncekey.core.origin import Origin, label_of
from oncekey.core.search import LOOKED_AT_FIRST, NEWEST, Page, Query
from oncekey.core.state_machine import is_garbage
from oncekey.testing.contract.store_case import (
    ABSENT,
    FAILED,
    KEEP,
    LEASE,
    PENDING,
    SUCCEEDED,
    UNKNOWN,
    HeldClaim,
    StoreCase,
    claim,
    token,
)

ALL = 1_000
CHARGE = label_of("http", Origin("http", "POST /charges", "create_charge"))
REFUND = label_of("http", Origin("http", "POST /charges/{id}/refunds", "refund"))


def found(case: StoreCase, **query: object) -> list[bytes]:
    return [record.id for record in page(case, Query(**query)).records]  # type: ignore[arg-type]


def page(case: StoreCase, query: Query, limit: int = ALL, after: object = NEWEST) -> Page:
    return case.store.search(query, limit, after)  # type: ignore[arg-type]


def freed_with_a_step(case: StoreCase) -> HeldClaim:
    held = case.claimed()
    case.expect(Done, held.step())
    case.expect(Done, held.release())
    return held


class SearchedRecords:
    def test_s11_an_empty_store_has_no_records_and_no_next_page(self, case: StoreCase) -> None:
        assert page(case, Query()) == Page((), case.now(), 0, None)

    def test_s11_records_come_newest_claim_first_with_all_that_describes_them(
        self, case: StoreCase
    ) -> None:
        held = []
        for name in "abc":
            held.append(case.claimed(scope=f"acct-{name}", label=CHARGE, key=name))
            case.wait(1)
        case.expect(Done, held[1].finish(body=b"x" * 5_000))
        records = page(case, Query()).records
        assert [record.id for record in records] == [one.id for one in reversed(held)]
        stored = case.record(held[1].id)
        assert records[0] == case.record(held[2].id)
        assert records[1] == stored._replace(body=stored.body[:1_024], steps=())
        assert records[1].origin.route == "POST /charges"

    def test_s11_pages_cover_every_record_once(self, case: StoreCase) -> None:
        ids = [case.claimed().id for _ in range(7)]  # some in the same microsecond
        got: list[bytes] = []
        after = NEWEST
        for _ in range(10):
            part = page(case, Query(), 2, after)
            got += [record.id for record in part.records]
            if part.next is None:
                break
            after = part.next
        assert sorted(got) == sorted(ids)

    def test_s11_a_rare_record_is_found_behind_many_others(self, case: StoreCase) -> None:
        """A database looks at a few records first: what it misses there, it must find behind."""
        rare = case.claimed(scope="rare")
        case.wait(1)
        older = case.claimed()
        case.wait(1)
        others = [claim(token("id"), token("own")) for _ in range(2 * LOOKED_AT_FIRST)]
        for start in range(0, len(others), LOOKED_AT_FIRST):
            case.send_all(*others[start : start + LOOKED_AT_FIRST])
        for limit in (1, 2, ALL):
            part = page(case, Query(scope="rare"), limit)
            assert [record.id for record in part.records] == [rare.id]
            assert (part.looked_at, part.next) == (len(others) + 2, None)
        part = page(case, Query(), len(others), NEWEST)
        assert {record.id for record in part.records} == {other.id for other in others}
        assert part.next is not None
        last = page(case, Query(), ALL, part.next)
        assert [record.id for record in last.records] == [older.id, rare.id]
        assert last.next is None

    def test_s11_a_page_that_ends_at_its_limit_has_looked_at_the_records_up_to_there(
        self, case: StoreCase
    ) -> None:
        """What is behind the end of a page is looked at by the next one."""
        ids = []
        for n in range(9):
            ids.append(case.claimed(scope="even" if n % 2 == 0 else "odd").id)
            case.wait(1)
        first = page(case, Query(), 4)
        assert [record.id for record in first.records] == ids[:4:-1]
        assert first.looked_at == 4
        second = page(case, Query(), 4, first.next)
        last = page(case, Query(), 4, second.next)
        assert (second.looked_at, last.looked_at, last.next) == (4, 1, None)
        every_second = page(case, Query(scope="odd"), 2)
        assert [record.id for record in every_second.records] == [ids[7], ids[5]]
        assert every_second.looked_at == 4

    def test_s11_states_are_those_that_a_claim_would_find(self, case: StoreCase) -> None:
        dead = case.claimed()
        retryable = case.claimed(retry_safe=True)
        case.wait(LEASE)
        pending, done, failed = case.claimed(), case.claimed(), case.claimed()
        assert case.send_all(done.finish(), failed.finish(state=FAILED)) == [Done(), Done()]
        gone = case.claimed()
        case.expect(Done, gone.release())
        freed = freed_with_a_step(case)
        assert found(case, states=frozenset((UNKNOWN,))) == [dead.id]
        assert set(found(case, states=frozenset((PENDING,)))) == {pending.id, retryable.id}
        assert found(case, states=frozenset((SUCCEEDED,))) == [done.id]
        assert found(case, states=frozenset((FAILED,))) == [failed.id]
        assert found(case, states=frozenset((ABSENT,))) == [freed.id]
        assert gone.id not in found(case)

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({"scope": "acct-1"}, "ab"),
            ({"scope": "acct"}, ""),
            ({"operation": "http"}, "ab"),
            ({"operation": "ht"}, ""),
            ({"operation": "charge"}, "c"),
            ({"route": "POST /charges"}, "ab"),
            ({"route": "POST /charges/"}, "b"),
            ({"route": "GET"}, ""),
            ({"route": ""}, "abc"),
            ({"key": "k1"}, "a"),
            ({"scope": "acct-1", "operation": "http", "route": "POST", "key": "k2"}, "b"),
        ],
    )
    def test_s11_every_given_field_must_match(
        self, case: StoreCase, query: dict[str, str], expected: str
    ) -> None:
        ids = {
            case.claimed(scope="acct-1", label=CHARGE, key="k1").id: "a",
            case.claimed(scope="acct-1", label=REFUND, key="k2").id: "b",
            case.claimed(scope="acct-2", label="charge", key="k3").id: "c",
        }
        assert "".join(sorted(ids[id] for id in found(case, **query))) == expected

    def test_s11_a_tag_or_its_beginning_finds_the_key(self, case: StoreCase) -> None:
        one, other = case.claimed(label=CHARGE), case.claimed()
        assert found(case, tag=one.id.hex()) == [one.id]
        assert set(found(case, tag=one.id.hex()[:1])) >= {one.id}
        assert found(case, tag=other.id.hex(), operation="http") == []

    def test_s11_expired_records_are_found_only_on_request(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.finish())
        case.wait(KEEP)
        assert found(case) == []
        assert found(case, expired=True) == [held.id]

    def test_s12_the_measures_count_claims_and_what_is_due(self, case: StoreCase) -> None:
        held = [case.claimed() for _ in range(3)]
        case.send_all(*(one.finish() for one in held))
        measures = case.store.measure()
        assert (measures.claims, measures.due, measures.oldest_due) == (3, 0, 0)
        assert measures.now == case.now()

    def test_s12_the_measures_are_what_another_count_finds(self, case: StoreCase) -> None:
        assert (case.store.measure().rows, page(case, Query()).looked_at) == (0, 0)
        held = [case.key_in(SUCCEEDED), case.claimed(), case.claimed()]
        held += [case.key_in(SUCCEEDED, keep=1, audit=0) for _ in range(3)]
        stored = page(case, Query()).records
        measures = case.store.measure()
        assert (measures.rows, measures.claims) == (len(stored), len(stored)) == (6, 6)
        assert measures.bytes > 0
        case.wait(LEASE + 1)
        case.wait_for_sweeper()
        records = [case.record(one.id) for one in held]
        due = [record.audit_until for record in records if is_garbage(record, case.now())]
        measures = case.store.measure()
        assert (measures.rows, measures.due) == (6, len(due))
        assert 0 < min(due) <= measures.oldest_due <= case.now()
        swept = case.store.sweep(10)
        measures = case.store.measure()
        assert (measures.rows, measures.due, swept >= 3) == (6 - swept, len(due) - swept, True)


class OperatorDecisions:
    """`Resolve` with `expected`: an operator frees a failed key, and notes stay with the key."""

    def test_a_failed_key_is_freed_and_its_failure_archived(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.finish(state=FAILED, body=b"no"))
        free = Resolve(held.id, held.fence, ABSENT, b"", "ana: mended", FAILED)
        case.expect(Done, free)
        case.expect(Done, free)  # I9
        again = case.expect(Claimed, held.rival())
        assert again.fence > held.fence
        assert case.record(held.id).note == "ana: mended\n"
        (past,) = case.store.history(held.id)
        assert (past.state, past.body, past.fence) == (FAILED, b"no", held.fence)

    def test_i2_a_succeeded_key_is_never_freed(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.finish())
        for expected in (FAILED, UNKNOWN):
            command = Resolve(held.id, held.fence, ABSENT, b"", "ana: why", expected)
            assert case.unchanged_by(command) == [Lost()]

    def test_an_unknown_key_that_was_resolved_as_failed_is_not_freed_by_a_late_recovery(
        self, case: StoreCase
    ) -> None:
        held = case.claimed()
        case.wait(LEASE)
        case.expect(Done, Resolve(held.id, held.fence, FAILED, b"no", "ana: it failed"))
        late = Resolve(held.id, held.fence, ABSENT, b"", "recover: it never happened")
        assert case.unchanged_by(late) == [Lost()]

    def test_i1_an_unknown_key_whose_owner_came_back_meanwhile_is_not_decided(
        self, case: StoreCase
    ) -> None:
        """Nothing had happened when the operator looked; then the owner renewed, and went on."""
        held = case.claimed()
        case.wait(LEASE)
        shown = case.record(held.id)
        case.expect(Done, held.renew())
        case.wait(LEASE)
        free = Resolve(held.id, held.fence, ABSENT, b"", "ana: it never ran")
        late = free._replace(lease_until=shown.lease_until)
        assert case.unchanged_by(late) == [Lost()]
        again = free._replace(lease_until=case.record(held.id).lease_until)
        case.expect(Done, again)
        case.expect(Done, again)  # I9

    def test_the_notes_of_all_decisions_stay_until_the_key_expires(self, case: StoreCase) -> None:
        held = case.claimed()
        case.wait(LEASE)
        case.expect(Done, Resolve(held.id, held.fence, ABSENT, b"", "ana: it never ran"))
        again = case.expect(Claimed, held.rival())
        case.wait(LEASE)
        case.expect(Done, Resolve(held.id, again.fence, SUCCEEDED, b"yes", "bob: it ran"))
        assert case.record(held.id).note == "ana: it never ran\nbob: it ran"
        case.wait(KEEP)
        case.expect(Claimed, held.rival())
        assert case.record(held.id).note == ""
