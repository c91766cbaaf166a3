"""A test run leaves nothing behind, however it ends: no process, no port, no folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers import endless_tests
from tests.support.servers import processes, run_reaper
from tests.support.servers.run_folders import MEMORY

ROOT = Path(__file__).parents[2]
SECONDS = 300
WORKERS, ALONE = "-n2", "-pno:xdist"
Ending = Callable[["subprocess.Popen[bytes]"], None]


def ctrl_c(run: subprocess.Popen[bytes]) -> None:
    """Interrupt every process of the group, as a terminal does."""
    os.killpg(run.pid, signal.SIGINT)


def ctrl_c_twice(run: subprocess.Popen[bytes]) -> None:
    ctrl_c(run)
    ctrl_c(run)


def terminate(run: subprocess.Popen[bytes]) -> None:
    run.terminate()


def kill(run: subprocess.Popen[bytes]) -> None:
    run.kill()


def kill_the_group(run: subprocess.Popen[bytes]) -> None:
    os.killpg(run.pid, signal.SIGKILL)


def naming(run: str) -> list[str]:
    """Return the processes whose command or environment names a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue  # it has just ended, or is another user's
        if any(run.encode() in text for text in texts):
            found.append(f"{entry.name} {texts[0].decode(errors='replace')}")
    return found


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def shared_memory_of(pids: list[int]) -> list[str]:
    """Return what is left in memory by these processes: libfaketime's files, System V segments."""
    files = [
        path.name for path in MEMORY.glob("*faketime*") if int(path.name.split("_")[-1]) in pids
    ]
    segments = Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]
    return files + [line for line in segments if int(line.split()[4]) in pids]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize(
    ("options", "tests", "end"),
    [
        (WORKERS, 2, ctrl_c),
        (WORKERS, 2, kill),
        (ALONE, 1, terminate),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                (WORKERS, 2, ctrl_c_twice),
                (WORKERS, 2, terminate),
                (ALONE, 1, ctrl_c),
                (ALONE, 1, kill),
                (ALONE, 1, kill_the_group),
            ]
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_a_run_leaves_nothing_behind(tmp_path: Path, options: str, tests: int, end: Ending) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != run_reaper.VARIABLE and not name.startswith("PYTEST_")
    }
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", options),
                *("--timeout", "0", endless_tests.__file__),
            ],
            cwd=ROOT,
            env={**environment, endless_tests.PIPE: str(pipe)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # It is open for writing too, so that it stays open when the first test has told its part.
    with open(os.open(pipe, os.O_RDWR), encoding="utf-8") as told:
        parts: list[dict[str, Any]] = [json.loads(told.readline()) for _ in range(tests)]
    pids = [pid for part in parts for pid in part["pids"]]
    folders = {folder for part in parts for folder in part["folders"]}
    ports = [port for part in parts for port in part["ports"]]
    (name,) = {Path(folder).name for folder in folders}
    assert all(map(processes.is_running, pids))
    assert all(map(is_open, ports))
    end(run)
    run.wait(SECONDS)
    processes.wait_until(lambda: not naming(name), f"the processes of {name} are gone", SECONDS)
    assert not [pid for pid in pids if processes.is_running(pid)], (tmp_path / "log").read_text()
    assert not [port for port in ports if is_open(port)]
    assert not [folder for folder in folders if Path(folder).exists()]
    assert not shared_memory_of(pids)
