"""The process that clears up after a test run: it ends what the run started, and removes its files.

It waits until the run says that it is over, or is gone without a word, as after SIGKILL. It is a
script of the standard library alone, so that it starts at once and outlives any state of the run.
It must not know any particular server.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# The variable by which each process knows its run, and the reaper knows each process.
VARIABLE = "ONCEKEY_TEST_RUN"
# Files in a run's folders. The first is open, and locked, in the run and in each fork of it.
ALIVE, LAUNCHED, ELSEWHERE = "alive", "launched", "elsewhere"

_MEMORY = Path("/dev/shm")
# What libfaketime leaves behind of a process that was killed, by its id.
_NAMED_BY_PID = ("faketime_shm_{}", "sem.faketime_sem_{}")
_SEGMENTS = Path("/proc/sysvipc/shm")
# Servers end by the death signal that they have, and Python's trackers of resources by themselves.
_GRACE_SECONDS = 2.0
_KILL_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 1.0


def clear(folders: Sequence[Path], spared: int = 0) -> None:
    """End every process of a run except `spared`, and remove its folders."""
    launched = dict(_launched(folders))
    end = time.monotonic() + _GRACE_SECONDS
    while (pids := _processes(folders, launched, spared)) and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    end += _KILL_SECONDS
    while pids and time.monotonic() < end:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended by itself
        time.sleep(_PAUSE_SECONDS)
        pids = _processes(folders, launched, spared)
    _free_shared_memory(launched)
    for path in [*_elsewhere(folders), *folders]:
        _remove(path)


def stat(pid: int) -> list[str]:
    """Return what the kernel knows of a process: state, parent, ...; nothing if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def is_running(pid: int) -> bool:
    """True if a process runs. A zombie, which its parent has not reaped yet, does not."""
    return stat(pid)[:1] not in ([], ["Z"], ["X"])


def began(pid: int) -> str:
    """Return when a process began, which tells it from a later one with the same id."""
    return "".join(stat(pid)[19:20])


# --- what belongs to a run ------------------------------------------------------------------------


def _processes(folders: Sequence[Path], launched: dict[int, str], spared: int) -> list[int]:
    spared_ids = (spared, os.getpid())
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if pid not in spared_ids and _is_of_the_run(pid, folders, launched)]


def _is_of_the_run(pid: int, folders: Sequence[Path], launched: dict[int, str]) -> bool:
    """True if a process was started by the run, or is a fork of it.

    A server writes its title over its environment, but it is in the session that it was given.
    Whoever merely looks into a folder of the run is none of it.
    """
    if not is_running(pid):
        return False
    session = int("".join(stat(pid)[3:4]) or -1)
    if session in launched and began(session) in ("", launched[session]):
        return True
    name, run = f"{VARIABLE}=".encode(), f"/{folders[0].name}".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if any(entry.startswith(name) and entry.endswith(run) for entry in environment):
            return True
        files = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False  # it is another user's, or it has just ended
    return any(str(folder / ALIVE) in files for folder in folders)


def _launched(folders: Sequence[Path]) -> Iterator[tuple[int, str]]:
    for line in _lines(folders, LAUNCHED):
        pid, _, beginning = line.partition(" ")
        yield int(pid), beginning


def _elsewhere(folders: Sequence[Path]) -> Iterator[Path]:
    yield from map(Path, _lines(folders, ELSEWHERE))


def _lines(folders: Sequence[Path], name: str) -> Iterator[str]:
    for path in (folder / name for folder in folders):
        if path.exists():
            yield from path.read_text(encoding="utf-8").splitlines()


# --- what is removed ------------------------------------------------------------------------------


def _free_shared_memory(launched: dict[int, str]) -> None:
    """Remove shared memory of servers that were killed, which is found by their process ids."""
    for pid, name in itertools.product(launched, _NAMED_BY_PID):
        path = _MEMORY / name.format(pid)
        if path.exists() and not is_running(pid):
            path.unlink(missing_ok=True)
    if not _SEGMENTS.exists() or shutil.which("ipcrm") is None:
        return
    for line in _SEGMENTS.read_text(encoding="ascii").splitlines()[1:]:
        _, segment, _, _, creator, _, attached = line.split()[:7]
        if int(creator) in launched and attached == "0" and not is_running(int(creator)):
            subprocess.run(["ipcrm", "--shmem-id", segment], capture_output=True, check=False)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # a test has made some of it read-only
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)


# --- when -----------------------------------------------------------------------------------------


def _wait_for_the_end(owner: int) -> bool:
    """Wait until the run has said that it is over; False if it is gone without a word."""
    watched = select.poll()
    watched.register(sys.stdin.fileno(), select.POLLIN)
    gone = os.pidfd_open(owner) if hasattr(os, "pidfd_open") else None
    if gone is not None:
        watched.register(gone, select.POLLIN)
    while os.getppid() == owner:
        if events := dict(watched.poll(_LOOK_SECONDS * 1000)):
            return bool(events.get(sys.stdin.fileno(), 0) & select.POLLIN)
    return False


def main() -> None:
    owner, *folders = sys.argv[1:]
    # A keyboard's interrupt does not reach the reaper's session; nothing else may end it early.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        said = _wait_for_the_end(int(owner))
    except ProcessLookupError:
        said = False
    clear(list(map(Path, folders)), spared=int(owner) if said else 0)


if __name__ == "__main__":
    main()
