"""The contracts on memory and on SQLite, for a pytest that runs one test of them on a mutant.

It needs no server and imports no driver, so that starting it costs little. All rows are in
tests/contract.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("oncekey.testing.contract")

from oncekey.stores.memory import MemoryStore  # noqa: E402
from oncekey.stores.sqlite import SQLiteStore  # noqa: E402
from oncekey.testing.contract import EngineContract, StoreContract  # noqa: E402


class TestMemoryStore(StoreContract):
    """Every rule of the store contract, on memory."""

    def open_store(self, clock: Callable[[], int]) -> MemoryStore:
        return MemoryStore(clock=clock)


class TestMemoryEngine(EngineContract):
    """Every rule of the engine contract, on memory."""

    def open_store(self, clock: Callable[[], int]) -> MemoryStore:
        return MemoryStore(clock=clock)


class TestSQLiteStore(StoreContract):
    """Every rule of the store contract, on SQLite."""

    path: Path

    @pytest.fixture(autouse=True)
    def _use_folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "keys.db"

    def open_store(self, clock: Callable[[], int]) -> SQLiteStore:
        return SQLiteStore(self.path, clock=clock)

    def open_beside(self, clock: Callable[[], int]) -> SQLiteStore:
        return SQLiteStore(self.path, clock=clock)
