"""A clock that libfaketime moves for the processes that are started with its environment.

Only the wall clock moves; the monotonic one, by which the history is written, does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.support.servers import processes
from tests.support.servers.redis_server import faketime_library

_SHARED_MEMORY: Final = ("faketime_shm_", "sem.faketime_sem_")


class MovedClock:
    """The file that says by how many seconds a clock is wrong, and the variables that name it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0.0
        self.set(0.0)

    def set(self, offset: float) -> None:
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(f"{offset:+f}\n", encoding="utf-8")
        unfinished.chmod(0o644)
        unfinished.rename(self._path)  # processes read the file at any time
        self.offset = offset

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(faketime_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }


def forget_shared_memory(pids: Iterable[int]) -> None:
    """Remove what libfaketime leaves behind of processes that were killed."""
    for pid in pids:
        for name in _SHARED_MEMORY:
            (processes.MEMORY / f"{name}{pid}").unlink(missing_ok=True)
