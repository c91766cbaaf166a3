"""Claims whose session etcd has ended, and claims that nobody keeps, on etcd (I1, I10, I11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.stores.etcd.two_stores import Pair, claimed

from oncekey.core.commands import Busy, Claimed
from oncekey.testing.contract.store_case import claim, token


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_i1_no_claim_of_a_batch_of_several_requests_is_acknowledged_in_an_ended_session(
    pair: Pair,
) -> None:
    """The first request finds out that the session has ended; the others were planned before."""
    claimed(pair.one, token("id"), token("own"))
    pair.one.end_sessions()
    ids, owner = [token("id") for _ in range(200)], token("own")
    replies = pair.one.store.apply([claim(id, owner, retry_safe=True) for id in ids])
    assert {type(reply) for reply in replies} == {Claimed}
    rivals = pair.other.store.apply([claim(id, token("riv"), retry_safe=True) for id in ids])
    assert {type(reply) for reply in rivals} == {Busy}
