"""The engine contract, for every store of the table in conftest.py and for both colours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncekey.core.contract import AsyncStore, Store
from oncekey.testing.contract import EngineContract

Opener = Callable[[Callable[[], int]], Store | AsyncStore]


class TestEngineContract(EngineContract):
    opener: Opener

    @pytest.fixture(autouse=True)
    def _of_this_kind(self, opener: Opener) -> None:
        self.opener = opener

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)
