"""In a caller's transaction: what a store is asked for, in which order, and what a lost finish is.

A store may find only at Finish that another owner has decided the key. It has then undone the
body's rows itself (core/store.py), so the caller is given the winner's answer.
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
from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.blocking.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

WINNER = b"winner".ljust(16)


class Rows:
    """A transaction's rows on a memory store: what a caller wrote, and what was asked for."""

    def __init__(self, memory: MemoryStore, *, overtaken: bool, wins: bool = True) -> None:
        self.memory = memory
        self.overtaken = overtaken
        self.wins = wins
        self.rows: list[str] = []
        self.marked: list[int] = []
        self.asked: list[str] = []

    def apply_now(self, commands: Sequence[Command]) -> list[Reply]:
        (command,) = commands
        self.asked.append(type(command).__name__)
        if isinstance(command, Finish) and self.overtaken:
            self._decide_elsewhere(command)
            self.undo_now()
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

    def mark_now(self) -> None:
        self.asked.append("mark")
        self.marked.append(len(self.rows))

    def undo_now(self) -> None:
        self.asked.append("undo")
        del self.rows[self.marked.pop() :]

    def settle_now(self) -> None:
        self.asked.append("settle")


class Enlisted(Rows):
    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.apply_now(commands)

    def set_savepoint(self) -> None:
        self.mark_now()

    def rollback_to_savepoint(self) -> None:
        self.undo_now()

    def release_savepoint(self) -> None:
        self.settle_now()


class AsyncEnlisted(Rows):
    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.apply_now(commands)

    async def set_savepoint(self) -> None:
        self.mark_now()

    async def rollback_to_savepoint(self) -> None:
        self.undo_now()

    async def release_savepoint(self) -> None:
        self.settle_now()


class Store(MemoryStore):
    """Its connections are its enlisted selves."""

    def join(self, connection: Any, /) -> Any:
        return connection


class AsyncStore(AsyncMemoryStore):
    def join(self, connection: Any, /) -> Any:
        return connection


def run_blocking(rows: dict[str, bool], error: Exception | None = None) -> tuple[Rows, Any]:
    store = Store()
    mine = Enlisted(store, **rows)

    def body(attempt: Any) -> str:
        mine.rows.append("tea")
        if error is not None:
            raise error
        return "mine"

    with Once(store) as once:
        return mine, _told(lambda: once.in_transaction(mine).run("op", "k", body))


def run_asyncio(rows: dict[str, bool], error: Exception | None = None) -> tuple[Rows, Any]:
    store = AsyncStore()
    mine = AsyncEnlisted(store.memory, **rows)

    async def body(attempt: Any) -> str:
        mine.rows.append("tea")
        if error is not None:
            raise error
        return "mine"

    async def main() -> Any:
        async with AsyncOnce(store) as once:
            return await once.in_transaction(mine).run("op", "k", body)

    return mine, _told(lambda: asyncio.run(main()))


def _told(call: Any) -> Any:
    try:
        result = call()
    except Exception as error:
        return error
    return result.value, result.replayed


both = pytest.mark.parametrize("run", [run_blocking, run_asyncio])


@both
def test_the_order_of_a_run(run: Any) -> None:
    mine, told = run({"overtaken": False})
    assert mine.asked == [Claim.__name__, "mark", "settle", "Finish"]
    assert told == ("mine", False)
    assert mine.rows == ["tea"]


@both
def test_a_lost_finish_is_answered_by_the_winner_and_leaves_no_rows(run: Any) -> None:
    mine, told = run({"overtaken": True})
    assert mine.asked == ["Claim", "mark", "settle", "Finish", "undo", "Look"]
    assert told == ("winner's", True)
    assert mine.rows == []


@both
def test_a_lost_finish_without_an_answer_is_an_error(run: Any) -> None:
    mine, told = run({"overtaken": True, "wins": False})
    assert isinstance(told, LeaseLost)
    assert mine.rows == []


@both
def test_a_raising_body_is_undone_before_its_key_is_given_back(run: Any) -> None:
    mine, told = run({"overtaken": False}, ValueError("no tea"))
    assert mine.asked == ["Claim", "mark", "undo", "Release"]
    assert isinstance(told, ValueError)


@both
def test_a_final_failure_is_undone_before_it_is_stored(run: Any) -> None:
    mine, told = run({"overtaken": False}, Terminal("never"))
    assert mine.asked == ["Claim", "mark", "undo", "Finish"]
    assert isinstance(told, Terminal)
