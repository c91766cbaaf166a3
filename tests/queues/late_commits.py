"""A database of which the commit may fail, for what a framework runs after a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator


class Database:
    """Rows that are there once they are committed, and how each session has ended."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.ends: list[str] = []
        self.fails = False

    def commit(self, pending: list[str]) -> None:
        self.ends.append("commit fails" if self.fails else "commit")
        if self.fails:
            raise ConnectionError("COMMIT failed")
        self.rows += pending

    def session(self) -> Iterator[list[str]]:
        pending: list[str] = []
        try:
            yield pending
        except BaseException:
            self.ends.append("rollback")
            raise
        self.commit(pending)

    async def async_session(self) -> AsyncIterator[list[str]]:
        pending: list[str] = []
        try:
            yield pending
        except BaseException:
            self.ends.append("rollback")
            raise
        self.commit(pending)
