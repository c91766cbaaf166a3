"""A record written as bytes reads back equal (S1), and damage is told, not decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.record import FOREVER_US, Record, State, Step
from oncekey.stores.record_format import HEAD, pack_record, unpack_record

times = st.integers(0, 2**62)
steps = st.builds(Step, st.text(max_size=9), st.booleans(), st.binary(max_size=20), times)
records = st.builds(
    Record,
    st.just(b"i" * 16),
    st.sampled_from(State),
    st.binary(max_size=40),
    st.binary(min_size=16, max_size=16),
    times,
    st.integers(1, 2**32 - 1),
    st.booleans(),
    times,
    times,
    times,
    times,
    times,
    st.text(max_size=20),
    st.text(max_size=20),
    st.text(max_size=20),
    st.lists(steps, max_size=3).map(tuple),
    st.binary(max_size=50),
    st.text(max_size=20),
    st.sampled_from([FOREVER_US, 5]),
)


@given(records, st.integers(0, 2**32 - 1))
def test_s1_a_record_reads_back_as_it_was_written(record: Record, revision: int) -> None:
    assert unpack_record(record.id, pack_record(record, revision)) == (record, revision)


@given(records, st.integers(0, HEAD.size + 10))
def test_a_record_that_is_cut_short_is_refused(record: Record, length: int) -> None:
    whole = pack_record(record._replace(fingerprint=b"f" * 32), 1)
    with pytest.raises(ValueError, match=r"cut short|format"):
        unpack_record(record.id, whole[:length])


def test_a_record_of_another_release_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2, this version reads 1"):
        unpack_record(b"i" * 16, b"\x02" + bytes(200))
