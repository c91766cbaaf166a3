"""Finds out whether another process has a database file open, from the file's locks.

In write-ahead mode every process that has the file open holds a shared lock on one byte of the
`-shm` file beside it. Querying that lock does not take it. The query uses SQLite's own descriptor,
because opening and closing the file here would drop the locks that SQLite holds in this process.
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
except ImportError:  # Windows, where it cannot be found out
    _fcntl = None

# UNIX_SHM_DMS in SQLite's os_unix.c, the same since 3.7.0.
_OPENERS_BYTE: Final = 128
_DESCRIPTORS: Final = "/dev/fd"


def is_open_elsewhere(path: str) -> bool | None:
    """True if another process has open the database that this process has open; None if that cannot
    be found out."""
    if _fcntl is None:
        return None
    try:
        descriptor = _descriptor_of(f"{path}-shm")
        return None if descriptor is None else _is_locked_by_others(descriptor)
    except OSError:
        return None


def _descriptor_of(path: str) -> int | None:
    """The descriptor under which this process has a file open."""
    wanted = os.stat(path)
    for name in os.listdir(_DESCRIPTORS):
        try:
            found = os.fstat(int(name))
        except (OSError, ValueError):  # closed since: the descriptor of the listing itself
            continue
        if os.path.samestat(found, wanted):
            return int(name)
    return None


def _is_locked_by_others(descriptor: int) -> bool:
    """True if an exclusive lock on that byte would have to wait for another process."""
    write, set_ = _fcntl.F_WRLCK, os.SEEK_SET
    if sys.platform == "linux":
        query = struct.pack("hhqqi", write, set_, _OPENERS_BYTE, 1, 0)
        kind = struct.unpack_from("h", _fcntl.fcntl(descriptor, _fcntl.F_GETLK, query))[0]
    else:  # macOS and the BSDs
        query = struct.pack("qqihh", _OPENERS_BYTE, 1, 0, write, set_)
        kind = struct.unpack_from("qqihh", _fcntl.fcntl(descriptor, _fcntl.F_GETLK, query))[3]
    return bool(kind != _fcntl.F_UNLCK)
