"""Store tests of the owner's commands and of Resolve (S1, I2, I9)."""

from __future__ import annotations

import pytest

from oncekey.core.commands import (
    Claimed,
    Done,
    Lost,
    Replay,
    Seen,
    Unknown,
)
from oncekey.core.record import State, Step
from oncekey.testing.contract.store_case import (
    ABSENT,
    FAILED,
    KEEP,
    LEASE,
    PENDING,
    SECOND,
    SUCCEEDED,
    UNKNOWN,
    HeldClaim,
    StoreCase,
    token,
)

FINAL = [SUCCEEDED, FAILED, UNKNOWN]


class OwnerCommands:
    @pytest.mark.parametrize("state", FINAL)
    def test_s1_a_finish_stores_state_body_and_time(self, case: StoreCase, state: State) -> None:
        held = case.claimed()
        before = case.record(held.id)
        case.wait(SECOND)
        assert case.send(held.finish(state, b"out")) == Done()
        assert case.record(held.id) == before._replace(
            state=state, finished_at=case.now(), body=b"out"
        )

    @pytest.mark.parametrize("state", FINAL)
    def test_i9_a_repeated_finish_is_done_and_writes_nothing(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.claimed()
        case.expect(Done, held.finish(state))
        case.wait(SECOND)
        assert case.unchanged_by(held.finish(state), held.finish(state)) == [Done(), Done()]

    @pytest.mark.parametrize("first", FINAL)
    @pytest.mark.parametrize("second", FINAL)
    def test_i2_a_finish_never_changes_another_one(
        self, case: StoreCase, first: State, second: State
    ) -> None:
        held = case.claimed()
        case.expect(Done, held.finish(first, b"first"))
        if first is UNKNOWN and second is not UNKNOWN:  # the late owner says how it ended
            case.expect(Done, held.finish(second, b"second"))
            assert case.expect(Replay, held.rival()).body == b"second"
            return
        (reply,) = case.unchanged_by(held.finish(second, b"second"))
        if not first == second == UNKNOWN:  # a second Finish as UNKNOWN changes nothing
            assert reply == Lost()

    def test_a_finish_after_the_lease_holds_if_nobody_took_over(self, case: StoreCase) -> None:
        held = case.claimed()
        case.wait(LEASE + SECOND)
        assert case.send(held.finish()) == Done()
        assert isinstance(case.send(held.rival()), Replay)

    @pytest.mark.parametrize("which", range(5))
    def test_i2_an_overtaken_owner_is_told_lost(self, case: StoreCase, which: int) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        case.expect(Claimed, held.rival(retry_safe=True))
        assert case.unchanged_by(held.owner_commands()[which]) == [Lost()]

    @pytest.mark.parametrize("which", range(5))
    def test_i2_another_owner_is_told_lost(self, case: StoreCase, which: int) -> None:
        held = case.claimed()
        stranger = HeldClaim(case, held.id, token("str"), held.fence)
        assert case.unchanged_by(stranger.owner_commands()[which]) == [Lost()]

    @pytest.mark.parametrize("off", [-1, 1])
    @pytest.mark.parametrize("which", range(4))
    def test_i2_the_right_owner_with_another_fence_is_told_lost(
        self, case: StoreCase, which: int, off: int
    ) -> None:
        held = case.claimed()
        stale = HeldClaim(case, held.id, held.owner, held.fence + off)
        assert case.unchanged_by(stale.owner_commands()[which]) == [Lost()]

    @pytest.mark.parametrize("which", range(5))
    def test_a_key_never_seen_has_no_owner(self, case: StoreCase, which: int) -> None:
        nobody = HeldClaim(case, token("id"), token("own"), 5)
        assert case.unchanged_by(nobody.owner_commands()[which]) == [Lost()]
        assert case.seen(nobody.id).record is None

    @pytest.mark.parametrize("state", FINAL)
    def test_i2_after_a_finish_the_other_commands_are_lost(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.claimed()
        case.expect(Done, held.finish(state))
        late = case.unchanged_by(held.renew(), held.release(), held.release_blind(), held.step())
        assert late == [Lost()] * 4

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
    def test_the_owner_of_a_key_given_up_says_how_it_ended(
        self, case: StoreCase, state: State
    ) -> None:
        """The owner was late, not dead: nobody else has run, and only it knows how it ended."""
        held, other = case.key_in(UNKNOWN), case.key_in(UNKNOWN)
        stranger = held.finish()._replace(owner=other.owner)
        stale = held.finish()._replace(fence=held.fence - 1)
        assert case.unchanged_by(stranger, stale) == [Lost(), Lost()]
        assert case.unchanged_by(held.renew(), held.step()) == [Lost(), Lost()]
        in_a_batch = case.send_all(held.finish(state, b"it did"), other.finish(state, b"it did"))
        assert in_a_batch == [Done(), Done()]
        assert case.unchanged_by(held.finish(state, b"it did")) == [Done()]
        assert case.expect(Replay, held.rival()).body == b"it did"
        assert case.record(held.id).expires_at == case.now() + KEEP

    def test_the_owner_of_a_key_given_up_says_that_nothing_happened(self, case: StoreCase) -> None:
        for blind in (False, True):
            held = case.key_in(UNKNOWN)
            case.expect(Done, held.release_blind() if blind else held.release())
            assert case.expect(Claimed, held.rival()).attempt == 2

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
    def test_whoever_resolved_a_key_before_its_late_owner_has_won(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(state))
        resolved = case.record(held.id)
        for said in (SUCCEEDED, FAILED, UNKNOWN):
            assert case.send(held.finish(said, b"its own")) == Lost()
        noted = "by hand; its late owner then reported: failed"
        assert case.record(held.id) == resolved._replace(note=noted)
        assert case.unchanged_by(held.finish(FAILED, b"its own")) == [Lost()]

    def test_a_zombie_of_a_past_generation_is_told_lost(self, case: StoreCase) -> None:
        held = case.key_in(SUCCEEDED)
        case.wait(case.record(held.id).expires_at - case.now())
        case.expect(Claimed, held.rival())
        assert case.unchanged_by(*held.owner_commands()) == [Lost()] * 5

    def test_s1_a_renewal_counts_from_now(self, case: StoreCase) -> None:
        held = case.claimed()
        before = case.record(held.id)
        case.wait(SECOND)
        assert case.send(held.renew(LEASE * 3)) == Done()
        assert case.record(held.id) == before._replace(lease_until=case.now() + LEASE * 3)

    def test_a_renewal_after_the_lease_holds_if_nobody_took_over(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        assert case.send(held.renew()) == Done()
        case.wait(LEASE - 1)
        assert not isinstance(case.send(held.rival(retry_safe=True)), Claimed)

    @pytest.mark.parametrize("blind", [False, True])
    def test_i9_release_frees_and_says_done_twice(self, case: StoreCase, blind: bool) -> None:
        held = case.claimed()
        release = held.release_blind() if blind else held.release()
        assert case.send(release) == Done()
        freed = case.record(held.id)
        assert (freed.state, freed.lease_until, freed.fence) == (ABSENT, case.now(), held.fence)
        case.wait(SECOND)
        assert case.unchanged_by(release) == [Done()]

    def test_i9_a_late_release_does_not_free_the_next_owners_claim(self, case: StoreCase) -> None:
        held = case.key_in(ABSENT)
        case.expect(Claimed, held.rival())
        assert case.unchanged_by(*held.owner_commands()) == [Lost()] * 5

    def test_after_a_release_the_other_commands_are_lost(self, case: StoreCase) -> None:
        held = case.key_in(ABSENT)
        assert case.unchanged_by(held.finish(), held.renew(), held.step()) == [Lost()] * 3


class SavedSteps:
    def test_s1_intent_then_result_in_the_order_they_were_saved(self, case: StoreCase) -> None:
        held = case.claimed()
        now = case.now()
        case.expect(Done, held.step("reserve", body=b"r-intent"))
        case.expect(Done, held.step("reserve", done=True, body=b"r-result"))
        case.wait(SECOND)
        case.expect(Done, held.step("pay", body=b"p-intent"))
        assert case.record(held.id).steps == (
            Step("reserve", True, b"r-result", now),
            Step("pay", False, b"p-intent", now + SECOND),
        )

    def test_i9_a_finished_step_never_changes(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.step(done=True, body=b"result"))
        case.wait(SECOND)
        repeats = [held.step(done=True, body=b"result"), held.step(done=True, body=b"x")]
        assert case.unchanged_by(*repeats, held.step(body=b"late intent")) == [Done()] * 3

    def test_steps_pass_to_the_next_owner_with_their_bytes(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        body = bytes(range(256))
        case.expect(Done, held.step("Prüfung → 支払い 🎉", done=True, body=body))
        case.wait(LEASE)
        (step,) = case.expect(Claimed, held.rival(retry_safe=True)).steps
        assert (step.name, step.done, step.body) == ("Prüfung → 支払い 🎉", True, body)

    def test_a_record_holds_a_hundred_steps(self, case: StoreCase) -> None:
        held = case.claimed()
        replies = case.store.apply(
            [held.step(f"step {n}", done=True, body=b"%d" % n) for n in range(100)]
        )
        assert replies == [Done()] * 100
        steps = case.record(held.id).steps
        assert [(s.name, s.body) for s in steps] == [(f"step {n}", b"%d" % n) for n in range(100)]

    def test_steps_stay_readable_in_a_finished_record(self, case: StoreCase) -> None:
        held = case.claimed()
        case.expect(Done, held.step(done=True, body=b"result"))
        case.expect(Done, held.finish())
        assert [step.body for step in case.record(held.id).steps] == [b"result"]


class ResolvedKeys:
    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
    def test_s1_an_unknown_key_is_decided_with_a_note(self, case: StoreCase, state: State) -> None:
        held = case.key_in(UNKNOWN)
        before = case.record(held.id)
        case.wait(SECOND)
        assert case.send(held.resolve(state, b"found", note="anna: bank says so")) == Done()
        now = case.now()
        assert case.record(held.id) == before._replace(
            state=state, body=b"found", note="anna: bank says so", finished_at=now, lease_until=now
        )
        assert isinstance(case.send(held.rival()), Replay)

    def test_an_unknown_key_is_freed_and_runs_again(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(ABSENT, b""))
        assert case.record(held.id).state is ABSENT
        reply = case.expect(Claimed, held.rival())
        assert (reply.attempt, reply.fence > held.fence) == (2, True)

    def test_i10_a_dead_owner_nobody_met_can_be_decided(self, case: StoreCase) -> None:
        held = case.claimed()
        assert case.unchanged_by(held.resolve()) == [Lost()]
        case.wait(LEASE)
        assert case.send(held.resolve()) == Done()

    def test_a_retry_safe_owners_key_cannot_be_resolved(self, case: StoreCase) -> None:
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        assert case.unchanged_by(held.resolve()) == [Lost()]

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
    def test_i9_a_repeated_decision_is_done_and_writes_nothing(
        self, case: StoreCase, state: State
    ) -> None:
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(state))
        case.wait(SECOND)
        assert case.unchanged_by(held.resolve(state)) == [Done()]

    def test_i2_a_second_decision_is_lost(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(SUCCEEDED, note="anna"))
        others = [held.resolve(FAILED, note="bert"), held.resolve(SUCCEEDED, note="bert")]
        assert case.unchanged_by(*others) == [Lost()] * 2

    def test_i2_a_second_decision_of_the_same_words_with_another_value_is_lost(
        self, case: StoreCase
    ) -> None:
        """Two operators saw the same status, and gave the same reason for other answers."""
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(body=b"paid"))
        assert case.unchanged_by(held.resolve(body=b"refused")) == [Lost()]
        case.expect(Done, held.resolve(body=b"paid"))  # I9

    @pytest.mark.parametrize("state", [ABSENT, PENDING, SUCCEEDED, FAILED])
    def test_only_unknown_keys_are_decided(self, case: StoreCase, state: State) -> None:
        held = case.key_in(state)
        assert case.unchanged_by(held.resolve(SUCCEEDED, note="other")) == [Lost()]

    def test_a_decision_names_the_fence_it_saw(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN)
        stale = HeldClaim(case, held.id, held.owner, held.fence - 1)
        assert case.unchanged_by(stale.resolve()) == [Lost()]
        assert case.unchanged_by(HeldClaim(case, token(), token(), 1).resolve()) == [Lost()]

    def test_an_expired_unknown_key_cannot_be_resolved(self, case: StoreCase) -> None:
        held = case.key_in(UNKNOWN)
        case.wait(case.record(held.id).expires_at - case.now())
        assert case.unchanged_by(held.resolve()) == [Lost()]

    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
    def test_i2_the_dead_owner_waking_up_after_the_decision_is_lost(
        self, case: StoreCase, state: State
    ) -> None:
        """Even if it reports the same state with another body: retries get the decision."""
        held = case.key_in(UNKNOWN)
        case.expect(Done, held.resolve(state, b"decided"))
        for late in (held.finish(SUCCEEDED, b"mine"), held.finish(FAILED, b"mine"), held.renew()):
            assert case.send(late) == Lost()
        record = case.record(held.id)
        assert (record.state, record.body) == (state, b"decided")

    def test_look_changes_nothing_and_tells_the_time(self, case: StoreCase) -> None:
        held = case.claimed()
        case.wait(LEASE * 2)
        assert case.seen(held.id) == Seen(case.record(held.id), case.clock.wall())
        assert case.record(held.id).state is PENDING
        assert isinstance(case.send(held.rival()), Unknown)
