"""Records and steps as bytes.

The steps of an operation are one column in the SQL stores:

    nothing     no steps: the common case costs no byte
    byte 0      format version
    then, per step, a head of fixed size and what it counts:
        u16 length of the name · u8 done · i64 time · u32 length of the body · name · body

Steps are created and deleted with their record and are always read as a whole, so a table of their
own would cost a join and gain nothing. Stores that keep a value per key (Redis, etcd) have the
whole record in it:

    head      of fixed size, so that a script in the server finds what it compares at fixed places:
              u8 version · u8 state · u8 retry_safe · i64 fence · u32 revision · u32 attempt ·
              i64 created_at · i64 lease_until · i64 finished_at · i64 keep · i64 audit ·
              i64 keep_unknown · 16 bytes owner · then the lengths of what follows:
              u16 fingerprint · u16 scope · u16 label · u16 key · u32 note · u32 steps
    then      fingerprint · scope · label · key · note · steps · body

All numbers are big-endian. The body is last, and as long as what is left, so an outcome is added
without moving anything. `revision` grows with every write of a record: together with the fence it
names one version of it. This module knows no store.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncekey.core.codec import pack_tombstone
from oncekey.core.commands import Finish, from_fields
from oncekey.core.record import Record, State, Step

_STEPS_VERSION: Final = 1
_STEP_HEAD: Final = struct.Struct(">HBqI")


def pack_steps(steps: Sequence[Step]) -> bytes:
    """The steps encoded as bytes, in their order."""
    if not steps:
        return b""
    parts = [bytes([_STEPS_VERSION])]
    for name, done, body, at in steps:
        text = name.encode()
        parts += (_STEP_HEAD.pack(len(text), done, at, len(body)), text, body)
    return b"".join(parts)


def unpack_steps(data: bytes) -> tuple[Step, ...]:
    """The steps decoded from bytes. ValueError if another release wrote them, or if they are cut
    short."""
    if not data:
        return ()
    if data[0] != _STEPS_VERSION:
        raise ValueError(f"stored steps have format {data[0]}, this version reads {_STEPS_VERSION}")
    steps = []
    at_byte = 1
    while at_byte < len(data):
        if at_byte + _STEP_HEAD.size > len(data):
            raise ValueError("stored steps are cut short")
        name_length, done, at, body_length = _STEP_HEAD.unpack_from(data, at_byte)
        name_from = at_byte + _STEP_HEAD.size
        body_from = name_from + name_length
        at_byte = body_from + body_length
        if at_byte > len(data):
            raise ValueError("stored steps are cut short")
        name = data[name_from:body_from].decode()
        steps.append(Step(name, bool(done), data[body_from:at_byte], at))
    return tuple(steps)


VERSION: Final = 1
OWNER_BYTES: Final = 16
HEAD: Final = struct.Struct(">BBBqIIqqqqqq16sHHHHII")
LENGTHS_MAX: Final = 0xFFFF  # of the fingerprint, scope, label and key, in bytes
VALUE_HEAD_BYTES: Final = 64  # what a store may put before a record
# What a record has besides steps and outcome: names, key, fingerprint, notes.
DESCRIPTION_MAX_BYTES: Final = 65_536

_STATES: Final = tuple(State)


class Stored(NamedTuple):
    """A record as it was read, and the revision of its value."""

    record: Record
    revision: int


def pack_record(record: Record, revision: int) -> bytes:
    """The record encoded as bytes. ValueError if a part is too long for its length."""
    (
        _, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
        finished_at, keep, audit, scope, label, key, steps, body, note, keep_unknown,
    ) = record[:]  # fmt: skip
    if len(owner) != OWNER_BYTES:
        raise ValueError(f"an owner has {OWNER_BYTES} bytes, this one has {len(owner)}")
    scope_, label_, key_, note_ = scope.encode(), label.encode(), key.encode(), note.encode()
    if max(len(fingerprint), len(scope_), len(label_), len(key_)) > LENGTHS_MAX:
        raise ValueError(f"a fingerprint, scope, label or key is longer than {LENGTHS_MAX} bytes")
    steps_ = pack_steps(steps)
    head = HEAD.pack(
        VERSION, state, retry_safe, fence, revision & 0xFFFFFFFF, attempt, created_at, lease_until,
        finished_at, keep, audit, keep_unknown, owner, len(fingerprint), len(scope_), len(label_),
        len(key_), len(note_), len(steps_),
    )  # fmt: skip
    return b"".join((head, fingerprint, scope_, label_, key_, note_, steps_, body))


def fitting(command: Finish, record: Record | None, most: int) -> Finish:
    """The command; if its outcome and the record's steps have more than `most` bytes together, with
    a tombstone in place of the outcome: the operation did run. Engines know the limit of an
    outcome, but not what the steps take up of it. A repeated finish becomes the same tombstone
    (I9)."""
    body = command.body
    if record is None or (not record.steps and len(body) + DESCRIPTION_MAX_BYTES <= most):
        return command
    if len(pack_record(record._replace(body=body), 0)) + VALUE_HEAD_BYTES <= most:
        return command
    reason = f"with its steps it has {len(body)} bytes or more, the store takes {most}"
    return command._replace(body=pack_tombstone(reason, too_large=True))


def unpack_record(id: bytes, value: bytes) -> Stored:
    """The record decoded from bytes. ValueError if another release wrote it, or if it is cut
    short."""
    if value[:1] != b"\x01":
        raise ValueError(
            f"a stored record has format {value[0] if value else 'nothing'}, this version reads "
            f"{VERSION}"
        )
    try:
        (
            _, state, retry_safe, fence, revision, attempt, created_at, lease_until, finished_at,
            keep, audit, keep_unknown, owner, fingerprint_to, scope_to, label_to, key_to, note_to,
            steps_to,
        ) = HEAD.unpack_from(value)  # fmt: skip
    except struct.error:
        raise ValueError("a stored record is cut short") from None
    # The lengths become the places where the parts end.
    fingerprint_to += HEAD.size
    scope_to += fingerprint_to
    label_to += scope_to
    key_to += label_to
    note_to += key_to
    steps_to += note_to
    if steps_to > len(value):
        raise ValueError("a stored record is cut short")
    steps = value[note_to:steps_to]
    fields = (
        id, _STATES[state], value[HEAD.size:fingerprint_to], owner, fence, attempt,
        bool(retry_safe), created_at, lease_until, finished_at, keep, audit,
        value[fingerprint_to:scope_to].decode(), value[scope_to:label_to].decode(),
        value[label_to:key_to].decode(), unpack_steps(steps) if steps else (), value[steps_to:],
        value[key_to:note_to].decode(), keep_unknown,
    )  # fmt: skip
    return from_fields(Stored, (from_fields(Record, fields), revision))
