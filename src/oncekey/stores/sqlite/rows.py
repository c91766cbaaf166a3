"""Converts records to rows and back.

This module owns the order of the columns in sql/queries.sql: the fields of Record, then the time at
which the sweeper looks at the row. It knows no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.commands import Finish
from oncekey.core.record import Record, State
from oncekey.stores.record_format import pack_steps, unpack_steps

Row = Sequence[Any]

_STATES: Final = tuple(State)


def record_of(row: Row) -> Record:
    """A record from a row of any of the select queries."""
    steps = row[15]
    return Record(
        row[0],
        _STATES[row[1]],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6] != 0,
        row[7],
        row[8],
        row[9],
        row[10],
        row[11],
        row[12].decode(),
        row[13].decode(),
        row[14].decode(),
        unpack_steps(steps) if steps else (),
        row[16],
        row[17].decode(),
        row[18],
    )


def record_row(record: Record) -> list[Any]:
    """A whole record and when to sweep it, for insert_record."""
    row = _row(record)
    row.append(record.sweep_at)
    return row


def history_row(record: Record) -> list[Any]:
    """A whole record and when its audit ends, for insert_history."""
    row = _row(record)
    row.append(record.audit_until)
    return row


def _row(record: Record) -> list[Any]:
    # sqlite3 looks up an adapter for every value that is not exactly an int, a float, a str or a
    # bytearray, which takes several times as long as making one of these.
    row: list[Any] = list(record)
    row[0] = bytearray(record.id)
    row[1] = int(record.state)
    row[2] = bytearray(record.fingerprint)
    row[3] = bytearray(record.owner)
    row[6] = int(record.retry_safe)
    row[15] = bytearray(pack_steps(record.steps))
    row[16] = bytearray(record.body)
    return row


def claimed_row(record: Record) -> Row:
    """A whole record, for update_claimed, which has the id last."""
    id, *rest = record_row(record)
    return (*rest, id)


def ended_row(record: Record) -> Row:
    """The fields of held_row and when to sweep the record, for update_ended."""
    *changed, id = held_row(record)
    return (*changed, record.sweep_at, id)


def held_row(record: Record) -> Row:
    """The fields that a command other than a claim may change, for update_held."""
    return (
        int(record.state),
        record.lease_until,
        record.finished_at,
        pack_steps(record.steps),
        record.body,
        record.note,
        record.id,
    )


def finish_row(command: Finish, now: int) -> Row:
    """What a finish writes, and what it must find in the row, for finish_held."""
    return (
        int(command.state),
        now,
        bytearray(command.body),
        bytearray(command.id),
        bytearray(command.owner),
        command.fence,
    )
