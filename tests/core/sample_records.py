"""Sample records and commands: plain ones to change, and hypothesis strategies for random ones.

The random ones have few and small values, so that owners, fences and times are often equal.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from oncekey.core.commands import (
    Claim,
    Command,
    Finish,
    Look,
    Release,
    Renew,
    Resolve,
    SaveStep,
)
from oncekey.core.record import FOREVER_US, Record, State, Step

ID = b"i" * 16
ME, OTHER = b"me" * 8, b"it" * 8
FINGERPRINT, OTHER_FINGERPRINT = b"\x01asked", b"\x01something else"
NOW = 1_000_000
LEASE, KEEP, AUDIT = 100, 1_000, 5_000
FENCE = 900_000
ENDED = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)


def record(state: State = State.PENDING, **changes: Any) -> Record:
    """OTHER's record at NOW: its lease is alive if it is pending, else it ended just before."""
    ended = state in ENDED
    made = Record(
        id=ID,
        state=state,
        fingerprint=FINGERPRINT,
        owner=OTHER,
        fence=FENCE,
        attempt=1,
        retry_safe=False,
        created_at=NOW - 50,
        lease_until=NOW + 50,
        finished_at=NOW - 10 if ended else 0,
        keep=KEEP,
        audit=AUDIT,
        scope="acct",
        label="charge",
        key="",
        steps=(),
        body=b"stored" if ended else b"",
        note="",
    )
    return made._replace(**changes)


def claim(**changes: Any) -> Claim:
    """A claim by ME, of the same request as OTHER's."""
    made = Claim(ID, ME, FINGERPRINT, LEASE, KEEP, AUDIT, False, "acct", "charge", "")
    return made._replace(**changes)


def finish(**changes: Any) -> Finish:
    """OTHER's finish, with success."""
    return Finish(ID, OTHER, FENCE, State.SUCCEEDED, b"answer")._replace(**changes)


def release(**changes: Any) -> Release:
    return Release(ID, OTHER, FENCE)._replace(**changes)


def renew(**changes: Any) -> Renew:
    return Renew(ID, OTHER, FENCE, LEASE)._replace(**changes)


def save_step(**changes: Any) -> SaveStep:
    return SaveStep(ID, OTHER, FENCE, "pay", True, b"paid")._replace(**changes)


def resolve(**changes: Any) -> Resolve:
    return Resolve(ID, FENCE, State.SUCCEEDED, b"found", "by hand")._replace(**changes)


# --- random ones ------------------------------------------------------------------------------

times = st.integers(1, 60)
_spans = st.integers(1, 20)
_unknown_spans = st.one_of(_spans, st.just(FOREVER_US))
_owners = st.sampled_from([ME, OTHER, b"3rd" + bytes(13)])
_fences = st.integers(1, 6)
_prints = st.sampled_from([FINGERPRINT, OTHER_FINGERPRINT])
_bodies = st.sampled_from([b"", b"one", b"two"])
_names = st.sampled_from(["a", "b"])
_notes = st.sampled_from(["", "by hand"])
_steps = st.lists(
    st.builds(Step, _names, st.booleans(), _bodies, times), max_size=2, unique_by=lambda s: s.name
).map(tuple)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record a store could hold."""
    state = draw(st.sampled_from(list(State)))
    return Record(
        id=ID,
        state=state,
        fingerprint=draw(_prints),
        owner=draw(_owners),
        fence=draw(_fences),
        attempt=draw(st.integers(1, 3)),
        retry_safe=draw(st.booleans()),
        created_at=draw(times),
        lease_until=draw(times),
        finished_at=draw(times) if state in ENDED else 0,
        keep=draw(_spans),
        audit=draw(st.integers(0, 20)),
        scope="",
        label="op",
        key="",
        steps=draw(_steps),
        body=draw(_bodies),
        note=draw(_notes),
        keep_unknown=draw(_unknown_spans),
    )


claims = st.builds(
    Claim,
    st.just(ID),
    _owners,
    _prints,
    _spans,
    _spans,
    st.integers(0, 20),
    st.booleans(),
    keep_unknown=_unknown_spans,
)
commands: st.SearchStrategy[Command] = st.one_of(
    claims,
    st.builds(Finish, st.just(ID), _owners, _fences, st.sampled_from(ENDED), _bodies),
    st.builds(Renew, st.just(ID), _owners, _fences, _spans),
    st.builds(Release, st.just(ID), _owners, st.one_of(st.none(), _fences)),
    st.builds(SaveStep, st.just(ID), _owners, _fences, _names, st.booleans(), _bodies),
    st.builds(Look, st.just(ID)),
    st.builds(
        Resolve,
        st.just(ID),
        _fences,
        st.sampled_from([State.SUCCEEDED, State.FAILED, State.ABSENT]),
        _bodies,
        _notes,
    ),
)
