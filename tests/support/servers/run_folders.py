"""The folders of a test run, in memory and on disk, and the promise that none of it is left behind.

The first process of a run owns them; its children find them by a variable of their environment. A
reaper removes them when the owner has ended, in whatever way. This module must not know what is in
the folders.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.servers import run_reaper

MEMORY = Path("/dev/shm")
_PREFIX = "oncekey-run-"
# A folder without its lock is in the making, unless it is older.
_UNFINISHED_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Two folders of one name; they are the same folder where no file may be in memory."""

    disk: Path
    memory: Path

    @property
    def both(self) -> list[Path]:
        return list(dict.fromkeys([self.disk, self.memory]))

    def note(self, file: str, line: str) -> None:
        """Add a line to a file that the reaper reads."""
        with (self.disk / file).open("a", encoding="utf-8") as notes:
            notes.write(f"{line}\n")  # one write at the end of the file, so processes may share it


@cache
def run_folders() -> RunFolders:
    """Return the folders of the run that this process belongs to; it begins one if there is none.

    They are open to every user, and so is the folder for temporary files in them.
    """
    inherited = os.environ.get(run_reaper.VARIABLE)
    if inherited is not None and Path(inherited).exists():
        return _in_both_places(Path(inherited))
    return _begin()


def note_launched(pid: int) -> None:
    """Tell the reaper of a server, which is in a session of its own."""
    run_folders().note(run_reaper.LAUNCHED, f"{pid} {run_reaper.began(pid)}")


def note_elsewhere(path: Path) -> None:
    """Have the reaper remove a folder outside of the run's own, if it is still there at the end."""
    run_folders().note(run_reaper.ELSEWHERE, str(path))


def _in_both_places(disk: Path) -> RunFolders:
    return RunFolders(disk, MEMORY / disk.name if os.access(MEMORY, os.W_OK) else disk)


def _begin() -> RunFolders:
    base = Path(tempfile.gettempdir()).resolve()
    folders = _in_both_places(base / f"{_PREFIX}{secrets.token_hex(4)}")
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", run_reaper.__file__, str(os.getpid()), *folders.both],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            reaper.communicate(b"over")

    atexit.register(end)
    for folder in folders.both:
        folder.mkdir()
        folder.chmod(0o755)
        # It stays open in this process and its forks, which the reaper knows by it.
        fcntl.flock(os.open(folder / run_reaper.ALIVE, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    temporary = folders.disk / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ[run_reaper.VARIABLE] = str(folders.disk)
    for place in {base, folders.memory.parent}:
        for folder in place.glob(f"{_PREFIX}*"):
            _clear_if_dead(folder, base)
    return folders


def _clear_if_dead(folder: Path, base: Path) -> None:
    """Clear up after a run of this user whose reaper was killed too."""
    try:
        if folder.stat().st_uid == os.getuid() and _is_dead(folder):
            run_reaper.clear(_in_both_places(base / folder.name).both)
    except OSError:
        pass  # its own reaper was faster


def _is_dead(folder: Path) -> bool:
    try:
        lock = os.open(folder / run_reaper.ALIVE, os.O_RDWR)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
