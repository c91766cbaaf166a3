"""A store elects one token at a time for its background work; sync and async, every store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncekey.core.store import AsyncStore, Store
from oncekey.testing.contract.store_case import SECOND, ContractBase, StoreCase, token

Opener = Callable[[Callable[[], int]], Store | AsyncStore]


class TestElection(ContractBase):
    """`Store.elect(token, lease)`."""

    opener: Opener

    @pytest.fixture(autouse=True)
    def _use_opener(self, opener: Opener) -> None:
        self.opener = opener

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)

    def test_the_first_token_is_elected_and_no_other(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND) is True
        assert case.store.elect(second, 10 * SECOND) is False
        assert case.store.elect(first, 10 * SECOND) is True, "an elected token may renew"
        assert case.store.elect(second, 10 * SECOND) is False

    def test_another_token_is_elected_in_the_microsecond_the_lease_ends(
        self, case: StoreCase
    ) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(10 * SECOND - 1)
        assert not case.store.elect(second, 10 * SECOND)
        case.wait(1)
        assert case.store.elect(second, 10 * SECOND)
        assert not case.store.elect(first, 10 * SECOND), "another token was elected"

    def test_a_renewed_election_lasts_from_its_renewal(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(6 * SECOND)
        assert case.store.elect(first, 10 * SECOND)
        case.wait(9 * SECOND)
        assert not case.store.elect(second, 10 * SECOND)
        case.wait(SECOND)
        assert case.store.elect(second, 10 * SECOND)

    def test_a_refused_token_changes_nothing(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(5 * SECOND)
        assert not case.store.elect(second, 60 * SECOND)
        case.wait(5 * SECOND)
        assert case.store.elect(second, SECOND)

    def test_an_election_far_in_the_future_does_not_outlast_a_clock_that_stepped_back(
        self, case: StoreCase
    ) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(-5 * SECOND)
        assert not case.store.elect(second, SECOND), "a small step back ends no election"
        case.wait(-86_400 * SECOND)
        assert case.store.elect(second, SECOND)
        assert not case.store.elect(first, 10 * SECOND)

    def test_one_of_many_concurrent_tokens_is_elected(self, case: StoreCase) -> None:
        many = 8
        barrier = threading.Barrier(many)

        def elect(_: int) -> bool:
            mine = token()
            barrier.wait(60)
            return case.store.elect(mine, 10 * SECOND)

        with ThreadPoolExecutor(many) as pool:
            assert sorted(pool.map(elect, range(many))) == [False] * (many - 1) + [True]

    def test_an_election_is_not_mistaken_for_the_secrets_check_value(self, case: StoreCase) -> None:
        """Both are in one table."""
        assert case.store.elect(token(), SECOND)
        case.store.bind(b"check")
        assert not case.store.elect(token(), SECOND)
        case.store.bind(b"check")
