"""Finish, renew, release, save step: compare-and-set. Resolve: the only way out of unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.sample_records import (
    FENCE,
    ID,
    KEEP,
    ME,
    NOW,
    finish,
    record,
    release,
    renew,
    resolve,
    save_step,
)

from oncekey.core.commands import Command, Done, Look, Lost, Seen
from oncekey.core.record import FOREVER_US, Record, State, Step
from oncekey.core.state_machine import decide

ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN

Verb = Callable[..., Command]
OWNERS_VERBS: list[Verb] = [finish, renew, release, save_step]
LOST = (Lost(), None, None)
DONE = (Done(), None, None)


def written(before: Record, command: Command, now: int = NOW) -> Record:
    decision = decide(before, command, now)
    assert decision.reply == Done()
    assert decision.archive is None
    assert decision.write is not None
    return decision.write


# --- compare-and-set on (owner, fence, pending) -------------------------------------------------


@pytest.mark.parametrize("verb", OWNERS_VERBS)
@pytest.mark.parametrize(
    "wrong", [{"owner": ME}, {"fence": FENCE - 1}, {"fence": FENCE + 1}], ids=str
)
def test_a_command_of_another_owner_or_fence_is_lost(verb: Verb, wrong: dict[str, Any]) -> None:
    assert decide(record(), verb(**wrong), NOW) == LOST


@pytest.mark.parametrize("verb", OWNERS_VERBS)
def test_a_command_without_a_record_is_lost(verb: Verb) -> None:
    assert decide(None, verb(), NOW) == LOST


@pytest.mark.parametrize("verb", [renew, save_step])
@pytest.mark.parametrize("state", [ABSENT, SUCCEEDED, FAILED, UNKNOWN])
def test_renew_and_save_step_need_a_pending_record(verb: Verb, state: State) -> None:
    assert decide(record(state), verb(), NOW) == LOST


@pytest.mark.parametrize("was", [ABSENT, SUCCEEDED, FAILED])
@pytest.mark.parametrize("into", [SUCCEEDED, FAILED, UNKNOWN])
def test_i2_i9_a_second_finish_is_done_only_if_it_is_the_same(was: State, into: State) -> None:
    before = record(was, body=b"answer")
    assert decide(before, finish(state=into), NOW) == (DONE if was is into else LOST)


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
def test_i2_a_late_finish_is_not_done_for_what_others_decided_meanwhile(state: State) -> None:
    """The key was given up and resolved by hand; then the owner finishes with other bytes."""
    resolved = written(record(UNKNOWN), resolve(state=state))
    assert decide(resolved, finish(state=state, body=b"mine"), NOW).reply == Lost()
    assert decide(resolved, finish(state=state, body=b"found"), NOW) == DONE


def test_an_interrupted_owner_of_a_key_given_up_meanwhile_gets_done() -> None:
    assert decide(record(UNKNOWN, body=b""), finish(state=UNKNOWN), NOW) == DONE


@pytest.mark.parametrize("was", [ABSENT, SUCCEEDED, FAILED])
def test_i9_a_second_release_is_done_only_if_the_key_is_free(was: State) -> None:
    assert decide(record(was), release(), NOW) == (DONE if was is ABSENT else LOST)


@pytest.mark.parametrize("verb", OWNERS_VERBS)
def test_the_owner_may_act_after_its_lease_until_somebody_claims(verb: Verb) -> None:
    """A claim is lost when somebody takes over, not when it is late."""
    assert decide(record(lease_until=NOW - 1), verb(), NOW).reply == Done()


# --- what each writes ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, UNKNOWN])
def test_finish_writes_outcome_and_end(state: State) -> None:
    before = record()
    after = written(before, finish(state=state))
    assert after == before._replace(state=state, finished_at=NOW, body=b"answer")
    assert after.expires_at == NOW + (FOREVER_US if state is UNKNOWN else KEEP)


def test_renew_moves_the_lease_from_now() -> None:
    before = record(lease_until=NOW + 1)
    assert written(before, renew(lease=7)) == before._replace(lease_until=NOW + 7)


def test_release_leaves_a_freed_record_with_its_fence() -> None:
    before = record()
    after = written(before, release())
    assert after == before._replace(state=ABSENT, lease_until=NOW)
    assert after.fence == FENCE, "the next fence must be above this one (I6)"


def test_release_without_a_fence_frees_a_claim_whose_reply_was_lost() -> None:
    assert written(record(), release(fence=None)).state is ABSENT
    assert decide(record(), release(fence=None, owner=ME), NOW) == LOST


def test_save_step_writes_intent_then_result() -> None:
    intent = written(record(), save_step(done=False, body=b"child"))
    assert intent.steps == (Step("pay", False, b"child", NOW),)
    done = written(intent, save_step(), NOW + 1)
    assert done.steps == (Step("pay", True, b"paid", NOW + 1),)


@pytest.mark.parametrize("late", [{"done": False, "body": b"intent"}, {"body": b"other"}], ids=str)
def test_a_finished_step_never_changes(late: dict[str, Any]) -> None:
    before = record(steps=(Step("pay", True, b"paid", NOW - 5),))
    assert decide(before, save_step(**late), NOW) == DONE


def test_steps_do_not_disturb_each_other() -> None:
    before = record(steps=(Step("a", True, b"1", 1), Step("pay", False, b"", 2)))
    after = written(before, save_step())
    assert after.steps == (Step("a", True, b"1", 1), Step("pay", True, b"paid", NOW))
    assert after.lease_until == before.lease_until


def test_look_returns_the_record_and_the_clock() -> None:
    expired = record(SUCCEEDED, finished_at=1, keep=1)
    assert decide(expired, Look(ID), NOW) == (Seen(expired, NOW), None, None)
    assert decide(None, Look(ID), NOW) == (Seen(None, NOW), None, None)


# --- resolve ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
def test_resolve_decides_an_unknown_key_and_keeps_the_note(state: State) -> None:
    before = record(UNKNOWN)
    assert written(before, resolve(state=state)) == before._replace(
        state=state, finished_at=NOW, lease_until=NOW, body=b"found", note="by hand"
    )


def test_resolve_free_leaves_a_freed_record_that_expires_from_now() -> None:
    after = written(record(UNKNOWN), resolve(state=ABSENT, body=b""))
    assert (after.state, after.finished_at, after.lease_until) == (ABSENT, 0, NOW)
    assert after.expires_at == NOW + KEEP
    assert (after.fence, after.note) == (FENCE, "by hand")


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
def test_resolve_decides_the_key_of_a_dead_owner_before_any_claim(state: State) -> None:
    assert written(record(lease_until=NOW), resolve(state=state)).state is state


@pytest.mark.parametrize(
    "before",
    [
        record(lease_until=NOW + 1),
        record(lease_until=NOW, retry_safe=True),
        record(FAILED),
        record(SUCCEEDED, note="by somebody else"),
        record(ABSENT),
        record(UNKNOWN, finished_at=NOW - KEEP, keep_unknown=KEEP),
        record(UNKNOWN, fence=FENCE + 1),
    ],
    ids=["alive", "retry-safe", "failed", "resolved otherwise", "freed", "expired", "newer"],
)
def test_resolve_changes_only_unknown_records(before: Record) -> None:
    assert decide(before, resolve(), NOW) == LOST


def test_resolve_without_a_record_is_lost() -> None:
    assert decide(None, resolve(), NOW) == LOST


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
def test_i9_a_repeated_resolve_is_done(state: State) -> None:
    command = resolve(state=state)
    after = written(record(UNKNOWN), command)
    assert decide(after, command, NOW + 1) == DONE


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
def test_a_late_owner_may_finish_a_key_that_was_given_up(state: State) -> None:
    given_up = record(UNKNOWN, body=b"")
    after = written(given_up, finish(state=state))
    assert after == given_up._replace(state=state, finished_at=NOW, body=b"answer")
    assert after.expires_at == NOW + KEEP
    assert decide(after, finish(state=state), NOW + 1) == DONE, "I9: its reply may be lost"


def test_a_late_owner_may_release_a_key_that_was_given_up() -> None:
    given_up = record(UNKNOWN, body=b"")
    for command in (release(), release(fence=None)):
        after = written(given_up, command)
        assert (after.state, after.finished_at, after.lease_until) == (ABSENT, 0, NOW)
        assert decide(after, command, NOW + 1) == DONE


def test_nobody_but_the_owner_may_finish_a_key_that_was_given_up() -> None:
    given_up = record(UNKNOWN, body=b"")
    for verb in (finish, release):
        assert decide(given_up, verb(owner=ME), NOW) == LOST
        assert decide(given_up, verb(fence=FENCE - 1), NOW) == LOST
    assert decide(given_up, renew(), NOW) == LOST


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ABSENT])
def test_a_late_owner_cannot_finish_a_key_that_was_resolved(state: State) -> None:
    resolved = written(record(UNKNOWN), resolve(state=state))
    for said in (SUCCEEDED, FAILED):
        late = finish(state=said, body=b"its own")
        refused = decide(resolved, late, NOW)
        # The decision stands; the record notes what the only witness says, once.
        noted = resolved._replace(
            note=f"by hand; its late owner then reported: {said.name.lower()}"
        )
        assert refused == (Lost(), noted, None)
        assert decide(noted, late, NOW) == LOST
        assert decide(noted, resolve(state=state), NOW) == DONE  # repeated: its reply was lost
    assert decide(resolved, finish(state=UNKNOWN), NOW) == LOST
