"""The commands of a move: records that come whole from another store, and fences that are raised.

What replaces what is decided by core/moved_records.py; these tests show that a store does so with
all fields, beside other commands, and that what it has replaced goes to its history.
"""

from __future__ import annotations

import pytest

from oncekey.core.commands import (
    Adopt,
    Busy,
    ClaimAlso,
    Claimed,
    Done,
    FenceTooLow,
    Finish,
    Lost,
    RaiseFence,
    Replay,
    Seen,
    Unknown,
)
from oncekey.core.errors import ConfigurationError
from oncekey.core.move_marks import ASKED, COPIED, MOVING, Mark, check_alone, mark_of, write_mark
from oncekey.core.moved_records import Side
from oncekey.core.record import Record, State, Step
from oncekey.testing.contract.store_case import (
    ABSENT,
    AUDIT,
    FAILED,
    FINGERPRINT,
    KEEP,
    LEASE,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
    StoreCase,
    claim,
    token,
)

AHEAD = 600 * SECOND  # how far the other store's clock is ahead


def foreign(case: StoreCase, state: State = SUCCEEDED) -> Adopt:
    """A record of another store, whose clock is ahead, with a value in every field."""
    now = case.now() + AHEAD
    record = Record(
        id=token("id"),
        state=state,
        fingerprint=FINGERPRINT,
        owner=token("own"),
        fence=now - 5 * SECOND,
        attempt=3,
        retry_safe=False,
        created_at=now - 60 * SECOND,
        lease_until=now + LEASE if state is PENDING else now - SECOND,
        finished_at=now - SECOND if state in (SUCCEEDED, FAILED, UNKNOWN) else 0,
        keep=KEEP,
        audit=AUDIT,
        scope="acct_1",
        label="charge\thttp\tPOST /charges\tcharges",
        key="order-17",
        steps=(Step("pay", True, b"paid", now - 2 * SECOND),),
        body=b"outcome" if state in (SUCCEEDED, FAILED) else b"",
        note="ana: looked at it\n",
    )
    return Adopt(record, now)


def by_this_clock(adopted: Adopt) -> Record:
    """The record as this store must have it: what is left of its times is the same."""
    record = adopted.record
    return record._replace(
        created_at=record.created_at - AHEAD,
        lease_until=record.lease_until - AHEAD,
        finished_at=record.finished_at - AHEAD if record.finished_at else 0,
        steps=tuple(step._replace(at=step.at - AHEAD) for step in record.steps),
    )


class AdoptedRecords:
    """Tests for the commands Adopt and RaiseFence."""

    @pytest.mark.parametrize("state", [ABSENT, PENDING, SUCCEEDED, FAILED, UNKNOWN])
    def test_a_record_of_another_store_is_adopted_with_every_field(
        self, case: StoreCase, state: State
    ) -> None:
        adopted = foreign(case, state)
        case.expect(Done, adopted)
        assert case.record(adopted.id) == by_this_clock(adopted)
        case.expect(Done, adopted)  # I9
        assert case.record(adopted.id) == by_this_clock(adopted)

    def test_i3_an_adopted_outcome_is_replayed_for_as_long_as_was_left(
        self, case: StoreCase
    ) -> None:
        adopted = foreign(case)
        case.expect(Done, adopted)
        replay = case.expect(Replay, claim(adopted.id, token("riv")))
        assert replay.body == b"outcome"
        assert replay.fence == adopted.record.fence
        assert replay.expires_in == KEEP - SECOND
        case.wait(KEEP - SECOND)
        fresh = case.expect(Claimed, claim(adopted.id, token("riv")))
        assert fresh.fence > adopted.record.fence  # I6
        assert [past.body for past in case.history(adopted.id)] == [b"outcome"]

    def test_i1_an_adopted_claim_becomes_unknown_when_its_lease_is_over(
        self, case: StoreCase
    ) -> None:
        adopted = foreign(case, PENDING)
        case.expect(Done, adopted)
        case.wait(LEASE)
        case.expect(Unknown, claim(adopted.id, token("riv")))

    def test_a_batch_of_adopted_records_is_adopted_beside_other_commands(
        self, case: StoreCase
    ) -> None:
        adopted = [foreign(case) for _ in range(3)]
        held = case.claimed()
        other = claim(token("id"), token("own"))
        replies = case.send_all(adopted[0], held.finish(), adopted[1], other, adopted[2])
        assert [type(reply) for reply in replies] == [Done, Done, Done, Claimed, Done]
        assert [case.record(one.id).body for one in adopted] == [b"outcome"] * 3

    def test_i2_an_outcome_is_replaced_only_by_one_of_a_higher_fence(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED, body=b"first")
        mine = case.record(held.id)
        for change in (
            {"fence": held.fence - 1, "owner": token("own")},
            {"fence": held.fence, "owner": token("own")},
            {"fence": held.fence + 1, "owner": token("own"), "state": PENDING},
            {"fence": held.fence + 1, "owner": token("own"), "state": ABSENT},
            {"body": b"second"},
        ):
            late = Adopt(mine._replace(**change), case.now())
            assert case.unchanged_by(late) == [Lost()]
        newer = mine._replace(fence=held.fence + 1, owner=token("own"), body=b"second")
        case.expect(Done, Adopt(newer, case.now()))
        assert case.record(held.id).body == b"second"
        assert [past.body for past in case.history(held.id)] == [b"first"]

    def test_i5_a_live_claim_is_not_replaced_by_another_claim(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        other = case.record(held.id)._replace(owner=token("own"), fence=held.fence + 1)
        assert case.unchanged_by(Adopt(other, case.now())) == [Lost()]
        case.wait(LEASE)
        case.expect(Done, Adopt(other, case.now()))
        assert case.send(held.finish()) == Lost()

    def test_i1_what_is_undecided_is_not_replaced_by_another_claim(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN)
        other = case.record(held.id)._replace(owner=token("own"), fence=held.fence + 1)
        for state in (PENDING, UNKNOWN, ABSENT):
            late = Adopt(other._replace(state=state), case.now())
            assert case.unchanged_by(late) == [Lost()]

    @pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
    def test_a_record_that_counts_replaces_whatever_has_no_higher_fence(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state)
        other = case.record(held.id)._replace(owner=token("own"), state=ABSENT, body=b"")
        lower = Adopt(other._replace(fence=held.fence - 1), case.now(), counts=True)
        assert case.unchanged_by(lower) == [Lost()]
        case.expect(Done, Adopt(other, case.now(), counts=True))
        case.expect(Claimed, held.rival())

    def test_i4_the_outcome_of_the_same_claim_ends_it_here(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.step())
        ended = case.record(held.id).ended(SUCCEEDED, case.now(), b"body")
        case.expect(Done, Adopt(ended, case.now()))
        case.expect(Done, held.finish())  # the owner itself, later
        assert case.expect(Replay, held.rival()).body == b"body"
        behind = ended._replace(state=PENDING, finished_at=0, body=b"")
        assert case.unchanged_by(Adopt(behind, case.now())) == [Done()]

    def test_a_past_generation_goes_to_the_history(self, case: StoreCase) -> None:
        adopted = foreign(case)
        case.history(adopted.id)  # skips stores that have none
        past = adopted._replace(past=True)
        case.expect(Done, past)
        assert case.seen(adopted.id).record is None
        assert case.history(adopted.id) == [by_this_clock(adopted)]
        held = case.expect(Claimed, claim(adopted.id, token("own")))
        case.expect(Done, past)  # I9
        assert case.history(adopted.id) == [by_this_clock(adopted)]
        assert case.record(adopted.id).fence == held.fence

    def test_i12_what_is_garbage_by_now_is_not_adopted(self, case: StoreCase) -> None:
        adopted = foreign(case)
        end = adopted._replace(at=adopted.record.audit_until)
        case.expect(Done, end)
        assert case.seen(adopted.id).record is None

    def test_i6_a_claim_that_another_store_has_granted_gets_its_fence(
        self, case: StoreCase
    ) -> None:
        for fence in (case.now() - AHEAD, case.now() + AHEAD):
            also = ClaimAlso(claim(token("id"), token("own")), fence)
            assert case.expect(Claimed, also).fence == fence
            assert case.expect(Claimed, also).fence == fence  # I9
            case.expect(Busy, claim(also.id, token("riv")))
            record = case.record(also.id)
            assert (record.fence, record.owner) == (fence, also.claim.owner)
            case.expect(Done, Finish(also.id, also.claim.owner, fence, SUCCEEDED, b"body"))

    def test_i6_a_claim_with_a_fence_that_the_key_had_here_is_refused(
        self, case: StoreCase
    ) -> None:
        freed = case.key_in(ABSENT)
        dead = case.claimed(retry_safe=True)
        case.wait(LEASE)
        for held in (freed, dead):
            rival = held.rival(retry_safe=True)
            for fence in (held.fence - 1, held.fence):
                too_low = case.unchanged_by(ClaimAlso(rival, fence))
                assert too_low == [FenceTooLow(held.fence)]
            taken = case.expect(Claimed, ClaimAlso(rival, held.fence + 1))
            assert taken.fence == held.fence + 1
            assert taken.taken_over is (held is dead)
            assert case.send(held.finish()) == Lost()

    @pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
    def test_i7_a_claim_that_another_store_has_granted_is_refused_as_any_other(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(state)
        expected = case.unchanged_by(held.rival())
        also = ClaimAlso(held.rival(), held.fence + AHEAD)
        assert case.unchanged_by(also) == expected

    def test_i6_an_owner_raises_its_fence(self, case: StoreCase) -> None:
        held = case.claimed()
        before = case.record(held.id)
        to = held.fence + AHEAD
        stranger = RaiseFence(held.id, token("own"), held.fence, to)
        lower = RaiseFence(held.id, held.owner, held.fence, held.fence - 1)
        wrong = RaiseFence(held.id, held.owner, held.fence + 1, to)
        nobody = RaiseFence(token("id"), held.owner, held.fence, to)
        assert case.unchanged_by(stranger, lower, wrong, nobody) == [Lost()] * 4
        raise_it = RaiseFence(held.id, held.owner, held.fence, to)
        case.expect(Done, raise_it)
        assert case.record(held.id) == before._replace(fence=to)
        case.expect(Done, raise_it)  # I9
        assert case.send(held.finish()) == Lost()  # the old fence is nobody's
        held.fence = to
        case.expect(Done, held.finish())
        assert case.send(raise_it) == Lost()

    def test_s8_bind_returns_the_mark_of_a_move_at_every_stage(self, case: StoreCase) -> None:
        """Otherwise a store that is being filled, or that was left, would be used alone."""
        stages = [
            (Side.OLD, ASKED, None),
            (Side.OLD, MOVING, None),
            (Side.OLD, COPIED, "open the new store"),
            (Side.NEW, MOVING, "still being filled"),
            (Side.NEW, COPIED, None),
        ]
        case.store.bind(b"check")
        for fence, (side, stage, refusal) in enumerate(stages, start=1):
            mark = Mark("a move", side, stage, fence)
            case.expect(Done, write_mark(mark, case.now()))
            seen = case.store.bind(b"check")
            assert isinstance(seen, Seen), "bind must return what is stored under MARK_ID (S8)"
            assert (mark_of(seen), seen.now) == (mark, case.now())
            if refusal is None:
                check_alone(seen)
            else:
                with pytest.raises(ConfigurationError, match=refusal):
                    check_alone(seen)

    def test_s8_the_mark_of_a_move_is_not_swept(self, case: StoreCase) -> None:
        """It must be there for whoever opens the store years later."""
        mark = Mark("a move", Side.OLD, COPIED, 1)
        case.expect(Done, write_mark(mark, case.now()))
        held = case.key_in(SUCCEEDED)
        for _ in range(10):  # more than a day: a part of a store that is filled again is emptied
            case.wait(3 * KEEP)
            while case.store.sweep():
                pass
        assert case.seen(held.id).record is None
        assert mark_of(case.store.bind(b"check")) == mark
