"""A statement of a program: a query by name, with its parameters.

This module knows neither the queries' texts nor connections.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.stores.postgres.rows import Row

T = TypeVar("T")


class Statement(NamedTuple):
    """One query by name, with its parameters."""

    name: str
    params: Sequence[Any] = ()


# A generator of statements, which is sent the rows of each.
Statements = Generator[Statement, Sequence[Row], T]

_WRITES: Final = frozenset(
    (
        "apply",
        "claim",
        "claim_one",
        "claim_one_and_settings",
        "finish",
        "finish_one",
        "insert_fresh",
        "finish_held",
        "insert_whole",
        "insert_absent",
        "insert_past",
        "replace",
    )
)


def is_write(statement: object) -> bool:
    """True if the statement may have changed records and committed that."""
    return isinstance(statement, Statement) and statement.name in _WRITES
