"""One token at a time does a store's background work, in every store and colour."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncekey.core.store import AsyncStore, Store
from oncekey.testing.contract.store_case import SECOND, ContractBase, StoreCase, token

Opener = Callable[[Callable[[], int]], Store | AsyncStore]


class TestElection(ContractBase):
    opener: Opener

    @pytest.fixture(autouse=True)
    def _of_this_kind(self, opener: Opener) -> None:
        self.opener = opener

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)

    def test_the_first_is_elected_and_nobody_beside_it(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND) is True
        assert case.store.elect(second, 10 * SECOND) is False
        assert case.store.elect(first, 10 * SECOND) is True, "the same one may ask again"
        assert case.store.elect(second, 10 * SECOND) is False

    def test_another_is_elected_in_the_microsecond_the_lease_ends(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(10 * SECOND - 1)
        assert not case.store.elect(second, 10 * SECOND)
        case.wait(1)
        assert case.store.elect(second, 10 * SECOND)
        assert not case.store.elect(first, 10 * SECOND), "it has been succeeded"

    def test_asking_again_counts_from_then(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(6 * SECOND)
        assert case.store.elect(first, 10 * SECOND)
        case.wait(9 * SECOND)
        assert not case.store.elect(second, 10 * SECOND)
        case.wait(SECOND)
        assert case.store.elect(second, 10 * SECOND)

    def test_who_asked_in_vain_changed_nothing(self, case: StoreCase) -> None:
        first, second = token(), token()
        assert case.store.elect(first, 10 * SECOND)
        case.wait(5 * SECOND)
        assert not case.store.elect(second, 60 * SECOND)
        case.wait(5 * SECOND)
        assert case.store.elect(second, SECOND)

    def test_a_dead_one_is_not_elected_until_a_clock_that_stepped_back_has_caught_up(
        self, case: StoreCase
    ) -> None:
        dead, second = token(), token()
        assert case.store.elect(dead, 10 * SECOND)
        case.wait(-5 * SECOND)
        assert not case.store.elect(second, SECOND), "a small step is no reason"
        case.wait(-86_400 * SECOND)
        assert case.store.elect(second, SECOND)
        assert not case.store.elect(dead, 10 * SECOND)

    def test_of_many_at_once_one_is_elected(self, case: StoreCase) -> None:
        many = 8
        together = threading.Barrier(many)

        def ask(_: int) -> bool:
            mine = token()
            together.wait(20)
            return case.store.elect(mine, 10 * SECOND)

        with ThreadPoolExecutor(many) as pool:
            assert sorted(pool.map(ask, range(many))) == [False] * (many - 1) + [True]

    def test_an_election_is_no_secret(self, case: StoreCase) -> None:
        """It shares a table with the secret's check value, and must not be taken for it."""
        assert case.store.elect(token(), SECOND)
        case.store.bind(b"check")
        assert not case.store.elect(token(), SECOND)
        case.store.bind(b"check")
