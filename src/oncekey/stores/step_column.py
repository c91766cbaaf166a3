"""The steps of an operation as one column of bytes, shared by the SQL stores.

    nothing     no steps: the common case costs no byte
    byte 0      format version
    then, per step, a head of fixed size and what it counts:
        u16 length of the name · u8 done · i64 time · u32 length of the body · name · body

Steps are created and deleted with their record and are always read as a whole, so a table of their
own would cost a join and gain nothing. This module knows no store.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from oncekey.core.record import Step

VERSION = 1

_HEAD = struct.Struct(">HBqI")


def pack_steps(steps: Sequence[Step]) -> bytes:
    """The steps encoded as bytes, in their order."""
    if not steps:
        return b""
    parts = [bytes([VERSION])]
    for name, done, body, at in steps:
        text = name.encode()
        parts += (_HEAD.pack(len(text), done, at, len(body)), text, body)
    return b"".join(parts)


def unpack_steps(data: bytes) -> tuple[Step, ...]:
    """The steps decoded from bytes. ValueError if another release wrote them, or if they are cut
    short."""
    if not data:
        return ()
    if data[0] != VERSION:
        raise ValueError(f"stored steps have format {data[0]}, this version reads {VERSION}")
    steps = []
    at_byte = 1
    while at_byte < len(data):
        if at_byte + _HEAD.size > len(data):
            raise ValueError("stored steps are cut short")
        name_length, done, at, body_length = _HEAD.unpack_from(data, at_byte)
        name_from = at_byte + _HEAD.size
        body_from = name_from + name_length
        at_byte = body_from + body_length
        if at_byte > len(data):
            raise ValueError("stored steps are cut short")
        name = data[name_from:body_from].decode()
        steps.append(Step(name, bool(done), data[body_from:at_byte], at))
    return tuple(steps)
