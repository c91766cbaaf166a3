"""A lock file: who has it has what it stands for, also while a fork has that closed.

The lock is flock's, which belongs to the open file and not to the process: a forked child has the
same one. It has to abandon its copy, or it would keep the lock for longer than its parent lives.
The file stays behind when it is unlocked; removing it could take it from under whoever is about to
lock it.

Owns the file and its lock. Where there is no flock (Windows, which does not fork either) it holds
nothing, and SQLite's own lock has to do.
"""

from __future__ import annotations

import io
import os
import sys

if sys.platform != "win32":
    import fcntl


class LockFile:
    """Locked from its making until `close`. Raises BlockingIOError where another one has it."""

    def __init__(self, path: str) -> None:
        self._file: io.FileIO | None = None
        if sys.platform == "win32":
            return
        # An object, so that it is closed with its owner.
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
        self._file = file

    def close(self) -> None:
        """Let go of it: unlocked even where somebody else still has a copy."""
        if self._file is not None and not self._file.closed:
            if sys.platform != "win32":
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
            self._file.close()

    def abandon(self) -> None:
        """Close a forked child's copy; the parent's stays locked."""
        if self._file is not None:
            self._file.close()
