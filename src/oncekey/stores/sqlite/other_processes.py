"""Tells whether another process has a database file open, by the file's own locks.

In write-ahead mode every process that has the file open holds a shared lock on one byte of the
`-shm` file beside it, for as long as it has it open. Asking about that lock takes none. It is asked
of the descriptor that SQLite itself has: opening and closing the file here would drop the locks
that SQLite holds in this process.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
from typing import Any, Final

_fcntl: Any
try:
    _fcntl = importlib.import_module("fcntl")
except ImportError:  # Windows: it cannot be told
    _fcntl = None

# UNIX_SHM_DMS in SQLite's os_unix.c, the same since 3.7.0.
_OPENERS_BYTE: Final = 128
_DESCRIPTORS: Final = "/dev/fd"


def is_shared(path: str) -> bool | None:
    """Whether another process has the database open that this process has open; None where that
    cannot be told."""
    if _fcntl is None:
        return None
    try:
        descriptor = _descriptor_of(f"{path}-shm")
        return None if descriptor is None else _is_locked_by_others(descriptor)
    except OSError:
        return None


def _descriptor_of(path: str) -> int | None:
    """The descriptor by which this process has a file open."""
    wanted = os.stat(path)
    for name in os.listdir(_DESCRIPTORS):
        try:
            found = os.fstat(int(name))
        except (OSError, ValueError):  # closed since it was listed: that of the listing itself
            continue
        if os.path.samestat(found, wanted):
            return int(name)
    return None


def _is_locked_by_others(descriptor: int) -> bool:
    """Whether an exclusive lock on that byte would have to wait for another process."""
    write, set_ = _fcntl.F_WRLCK, os.SEEK_SET
    if sys.platform == "linux":
        asked = struct.pack("hhqqi", write, set_, _OPENERS_BYTE, 1, 0)
        kind = struct.unpack_from("h", _fcntl.fcntl(descriptor, _fcntl.F_GETLK, asked))[0]
    else:  # macOS and the BSDs
        asked = struct.pack("qqihh", _OPENERS_BYTE, 1, 0, write, set_)
        kind = struct.unpack_from("qqihh", _fcntl.fcntl(descriptor, _fcntl.F_GETLK, asked))[3]
    return bool(kind != _fcntl.F_UNLCK)
