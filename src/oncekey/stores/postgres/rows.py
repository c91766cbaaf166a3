"""Converts records to rows and parameters, and rows to records.

This module owns the order of the columns in sql/queries.sql: clock, number and `wrote`, then the
fields of Record, then the revision. It knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Claim, Finish, from_fields
from oncekey.core.record import Record, State
from oncekey.stores.postgres.errors import UNREADABLE, unreadable_reply
from oncekey.stores.record_format import pack_steps, unpack_steps

Row = Sequence[Any]
Columns = list[Sequence[Any]]

_STATES: Final = tuple(State)
_CLAIM_COLUMNS: Final = 11
_FINISH_COLUMNS: Final = 5
_RECORD_COLUMNS: Final = 20
_REPLACE_COLUMNS: Final = 23
_decode_json: Final = json.JSONDecoder().raw_decode
_BYTES: Final = (0, 2, 3, 15, 16)  # the columns of the SQL function columns_1 that are bytes
_NO_COLUMNS: Final = (None,) * 20


class StoredRow(NamedTuple):
    """A record as it was read, and the revision of its row."""

    record: Record
    revision: int


def stored_row_of(row: Row) -> StoredRow | None:
    """The record in a row, None if the row has none."""
    if row[3] is None:
        return None
    steps = row[18]
    record = Record(
        row[3],
        _STATES[row[4]],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        row[11],
        row[12],
        row[13],
        row[14],
        row[15],
        row[16],
        row[17],
        unpack_steps(steps) if steps else (),
        row[19],
        row[20],
        row[21],
    )
    return StoredRow(record, row[22])


class Joined(NamedTuple):
    """What a claim in a caller's transaction has found: see join_2 in
    sql/shared/0007_short_replies.sql."""

    at: int | None
    open_savepoints: int
    locked: bool | None
    stored: StoredRow | None
    floor: int
    settings: str | None
    address: str | None


def joined_of(rows: Sequence[Row]) -> Joined:
    """The reply of the SQL function join_3: the clock reading, if the key is fresh and locked now,
    or what join_2 returns, as one JSON text."""
    try:
        values, _ = _decode_json(rows[0][0])
        if type(values) is int:
            return from_fields(Joined, (values, 0, True, None, 0, None, None))
        if values[3] is not None:
            values[3] = stored_row_of((None, None, None, *_columns_of(values[3])))
        return Joined(*values)
    except UNREADABLE as error:
        raise unreadable_reply("join", error) from error


def row_of(text: str) -> tuple[list[Any], Row]:
    """A reply of the SQL functions for one command: what comes first in its JSON array, and the
    `at`, `wrote` and record at its end as a row like those of a batch; empty if they are missing.
    """
    values, _ = _decode_json(text)
    if len(values) < 3:
        return values, ()
    *first, at, wrote, columns = values
    return first, (at, 0, wrote, *(_NO_COLUMNS if columns is None else _columns_of(columns)))


def _columns_of(columns: list[Any]) -> list[Any]:
    """The columns of a record, as the SQL function columns_1 returns them."""
    for number in _BYTES:
        columns[number] = bytes.fromhex(columns[number])
    return columns


def claim_columns(claims: Sequence[Claim]) -> Columns:
    """Claims as parallel arrays. A value that all claims share is sent once: most claims of a batch
    differ in little but their ids."""
    if not claims:
        return [[] for _ in range(_CLAIM_COLUMNS)]
    # By position, because this runs for every operation: a claim's fields are in this order.
    columns = list(zip(*claims, strict=True))
    columns[_CLAIM_COLUMNS - 1 :] = [columns[-1]]  # fields that the SQL does not need are left out
    return [
        column[:1] if number > 2 and column.count(column[0]) == len(column) else column
        for number, column in enumerate(columns)
    ]


def finish_columns(finishes: Sequence[Finish]) -> Columns:
    """Finishes as parallel arrays."""
    if not finishes:
        return [[] for _ in range(_FINISH_COLUMNS)]
    return list(zip(*finishes, strict=True))  # their fields are in this order; a state is a number


def record_columns(records: Sequence[Record]) -> Columns:
    """Whole records and when to sweep them, as parallel arrays."""
    columns: list[list[Any]] = [[] for _ in range(_RECORD_COLUMNS)]
    for record in records:
        values = (
            record.id,
            record.state.value,
            *record[2:15],
            pack_steps(record.steps),
            record.body,
            record.note,
            record.keep_unknown,
            record.sweep_at,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return list(columns)


def replace_columns(changes: Sequence[tuple[Record, StoredRow, bool]]) -> Columns:
    """New records, with the version that each of them replaces and whether that is archived."""
    columns = record_columns([record for record, _, _ in changes])
    columns.append([old.record.fence for _, old, _ in changes])
    columns.append([old.revision for _, old, _ in changes])
    columns.append([archive for _, _, archive in changes])
    assert len(columns) == _REPLACE_COLUMNS
    return columns
