"""The order of commands and savepoints in a caller's transaction, and what a lost finish does.

A store may find only at Finish that another owner has decided the key. It has then rolled back the
body's rows itself (core/store.py), so the caller gets the winner's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claim, Command, Done, Finish, Lost, Reply
from oncekey.core.errors import LeaseLost, Terminal
from oncekey.core.record import State
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

WINNER = b"winner".ljust(16)


class Rows:
    """A transaction on a memory store, with the caller's rows and the calls that were made."""

    def __init__(self, memory: MemoryStore, *, overtaken: bool, wins: bool = True) -> None:
        self.memory = memory
        self.overtaken = overtaken
        self.wins = wins
        self.rows: list[str] = []
        self.savepoints: list[int] = []
        self.called: list[str] = []

    def apply_now(self, commands: Sequence[Command]) -> list[Reply]:
        (command,) = commands
        self.called.append(type(command).__name__)
        if isinstance(command, Finish) and self.overtaken:
            self._decide_elsewhere(command)
            self.note_rollback()
            return [Lost()]
        return self.memory.apply(commands)

    def _decide_elsewhere(self, finish: Finish) -> None:
        """Another owner ends the key before this transaction does."""
        record = self.memory._records[finish.id]._replace(owner=WINNER, fence=finish.fence + 1)
        self.memory._records[finish.id] = record
        if self.wins:
            done = Finish(
                finish.id, WINNER, record.fence, State.SUCCEEDED, pack_value(JSON, "winner's")
            )
            assert self.memory.apply([done]) == [Done()]

    def note_savepoint(self) -> None:
        self.called.append("savepoint")
        self.savepoints.append(len(self.rows))

    def note_rollback(self) -> None:
        self.called.append("rollback")
        del self.rows[self.savepoints.pop() :]

    def note_release(self) -> None:
        self.called.append("release")


class Transaction(Rows):
    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.apply_now(commands)

    def set_savepoint(self) -> None:
        self.note_savepoint()

    def rollback_to_savepoint(self) -> None:
        self.note_rollback()

    def release_savepoint(self) -> None:
        self.note_release()


class AsyncTransaction(Rows):
    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.apply_now(commands)

    async def set_savepoint(self) -> None:
        self.note_savepoint()

    async def rollback_to_savepoint(self) -> None:
        self.note_rollback()

    async def release_savepoint(self) -> None:
        self.note_release()


class Store(MemoryStore):
    """The caller's connections are the transactions themselves."""

    def join(self, connection: Any, /) -> Any:
        return connection


class AsyncStore(AsyncMemoryStore):
    def join(self, connection: Any, /) -> Any:
        return connection


def run_blocking(rows: dict[str, bool], error: Exception | None = None) -> tuple[Rows, Any]:
    store = Store()
    transaction = Transaction(store, **rows)

    def body(attempt: Any) -> str:
        transaction.rows.append("tea")
        if error is not None:
            raise error
        return "mine"

    with Once(store) as once:
        return transaction, _result_of(
            lambda: once.in_transaction(transaction).run("op", "k", body)
        )


def run_asyncio(rows: dict[str, bool], error: Exception | None = None) -> tuple[Rows, Any]:
    store = AsyncStore()
    transaction = AsyncTransaction(store.memory, **rows)

    async def body(attempt: Any) -> str:
        transaction.rows.append("tea")
        if error is not None:
            raise error
        return "mine"

    async def main() -> Any:
        async with AsyncOnce(store) as once:
            return await once.in_transaction(transaction).run("op", "k", body)

    return transaction, _result_of(lambda: asyncio.run(main()))


def _result_of(call: Any) -> Any:
    try:
        result = call()
    except Exception as error:
        return error
    return result.value, result.replayed


both = pytest.mark.parametrize("run", [run_blocking, run_asyncio])


@both
def test_claim_savepoint_body_and_finish_come_in_this_order(run: Any) -> None:
    transaction, result = run({"overtaken": False})
    assert transaction.called == [Claim.__name__, "savepoint", "release", "Finish"]
    assert result == ("mine", False)
    assert transaction.rows == ["tea"]


@both
def test_a_lost_finish_returns_the_winners_result_and_leaves_no_rows(run: Any) -> None:
    transaction, result = run({"overtaken": True})
    assert transaction.called == ["Claim", "savepoint", "release", "Finish", "rollback", "Look"]
    assert result == ("winner's", True)
    assert transaction.rows == []


@both
def test_a_lost_finish_without_a_winner_raises(run: Any) -> None:
    transaction, result = run({"overtaken": True, "wins": False})
    assert isinstance(result, LeaseLost)
    assert transaction.rows == []


@both
def test_the_rows_of_a_raising_body_are_rolled_back_before_its_key_is_freed(run: Any) -> None:
    transaction, result = run({"overtaken": False}, ValueError("no tea"))
    assert transaction.called == ["Claim", "savepoint", "rollback", "Release"]
    assert isinstance(result, ValueError)


@both
def test_the_rows_of_a_final_failure_are_rolled_back_before_it_is_stored(run: Any) -> None:
    transaction, result = run({"overtaken": False}, Terminal("never"))
    assert transaction.called == ["Claim", "savepoint", "rollback", "Finish"]
    assert isinstance(result, Terminal)
