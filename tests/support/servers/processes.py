"""Starts, watches and ends server processes, whichever user runs the tests.

This module owns the user that a server runs as (database servers refuse root), free ports, and the
rule that no server outlives the process that started it. It must not know any particular server.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.support.servers import run_reaper
from tests.support.servers.run_folders import MEMORY as MEMORY
from tests.support.servers.run_folders import note_launched, run_folders

_NOBODY = 65534
# These are below the range of ports that the kernel gives to outgoing connections, so that a server
# that is down for a moment finds its port free.
_PORTS = range(20_000, 32_000)
_PAUSE_SECONDS = 0.005


class ServerMissing(Exception):
    """A server is not installed on this machine and cannot be fetched."""

    def __init__(self, name: str, how_to_get: str) -> None:
        super().__init__(f"{name} is not here: {how_to_get}")
        self.name = name
        self.how_to_get = how_to_get


class ServerFailed(Exception):
    """An installed server did not do what it was asked to; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class User:
    """The user that a server runs as: a prefix of its command, and the owner of its files."""

    wrapper: tuple[str, ...] = ()
    owner: int | None = None

    def prefix(self) -> Sequence[str]:
        """What stands before a command, so that it runs as this user.

        Python could become the user by itself, but would copy this process for that. gRPC, which
        the tests of etcd have in it, crashes some of these copies before they run the command.
        """
        if self.owner is None or not shutil.which("setpriv"):
            return self.wrapper
        identity = (f"--reuid={self.owner}", f"--regid={self.owner}", "--clear-groups")
        return ("setpriv", *identity, "--", *self.wrapper)

    def options(self) -> dict[str, Any]:
        if self.owner is None or shutil.which("setpriv"):
            return {}
        return {"user": self.owner, "group": self.owner, "extra_groups": []}

    def make_directory(self, path: Path) -> Path:
        path.mkdir(parents=True)
        path.chmod(0o755)
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)
        return path

    def run(
        self,
        command: Sequence[str | Path],
        directory: Path,
        env: Mapping[str, str] | None = None,
        seconds: float = 120,
    ) -> str:
        """Run a command to its end and return its output."""
        done = subprocess.run(
            [*self.prefix(), *map(str, command)],
            cwd=directory,
            env=clean_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
            **self.options(),
        )
        output = str(done.stdout)
        if done.returncode:
            raise ServerFailed(f"{Path(command[0]).name} ended with {done.returncode}\n{output}")
        return output


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without variables that would redirect a server or its tools."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC", **(more or {})}


@cache
def server_user(program: Path, directory: Path) -> User:
    """Return a user other than root that can run `program` in `directory`."""
    if os.getuid() != 0:
        return User()
    namespace = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    for user in (User(owner=_NOBODY), User(wrapper=namespace)):
        try:
            user.run(["/bin/sh", "-c", 'test -x . && exec "$0" --version', program], directory)
        except (OSError, subprocess.SubprocessError, ServerFailed):
            continue  # root may not become this user, or the user cannot read one of the two
        return user
    raise ServerMissing(
        program.name, "it refuses to run as root, and here root cannot become another user"
    )


def scratch() -> Path:
    """Return the folder for the data of this run, open to every user and removed at its end."""
    return run_folders().disk


def memory_scratch() -> Path:
    """Return a folder like `scratch`, in memory where the system allows it."""
    return run_folders().memory


def fresh_name(prefix: str) -> str:
    """Return a name that no other server has, of this process or of another."""
    return f"{prefix}-{secrets.token_hex(4)}"


def at_exit(call: Callable[[], object]) -> Callable[[], object]:
    """Have `call` run when this process ends, but not when a fork of it ends. Returns the hook."""
    registered_in = os.getpid()

    def hook() -> None:
        if os.getpid() == registered_in:
            call()

    if not _stay:
        atexit.register(hook)
    return hook


def forget(hook: Callable[[], object]) -> None:
    """Unregister a hook that `at_exit` returned."""
    atexit.unregister(hook)


# Port -> the socket that reserves it, of which only the number is kept: nobody closes it.
_reservations: dict[int, int] = {}


def free_port() -> int:
    """Return a port that nobody listens on, and that no other process on this machine was given:
    a server may take many seconds to listen on it."""
    for port in random.sample(_PORTS, min(200, len(_PORTS))):
        if port in _reservations:
            continue
        reservation = _reserve(port)
        if reservation is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                reservation.close()
                continue
        _reservations[port] = reservation.detach()
        return port
    raise ServerFailed("no free port on the loopback")


def _reserve(port: int) -> socket.socket | None:
    """Reserve a port among the processes that come here, until this one ends, or return None. An
    abstract name needs no file; only Linux has these."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            reservation.bind(f"\0oncekey-tests-port-{port}")
        except OSError:
            reservation.close()
            return None
    return reservation


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Poll until the condition holds; `what` describes it in the error after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ServerFailed(f"waited {seconds:g} s in vain until {what}")
        time.sleep(_PAUSE_SECONDS)


# --- processes ------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """True if a process runs. A zombie, which its parent has not reaped yet, does not."""
    if Path("/proc/self/stat").exists():
        return run_reaper.is_running(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [child for child in pids if run_reaper.stat(child)[1:2] == [str(pid)]]


DeathSignal = Literal["SIGQUIT", "SIGKILL"]


@dataclass(slots=True)
class Process:
    """One running server. `kill` ends it and its children at once, without any clean-up."""

    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def is_running(self) -> bool:
        return self.popen.poll() is None

    def pids(self) -> list[int]:
        return [self.pid, *children_of(self.pid)] if self.is_running() else []

    def send(self, number: signal.Signals) -> None:
        """Send a signal. When this returns, a process that was to stop has stopped."""
        if number == signal.SIGSTOP:
            suspend(self.pid)
        else:
            self.popen.send_signal(number)

    def freeze(self) -> None:
        """Stop the server and its children, as when their machine hangs."""
        self.send(signal.SIGSTOP)  # first: a stopped process starts no more children
        for pid in children_of(self.pid):
            suspend(pid)

    def thaw(self) -> None:
        """Let them go on with what has arrived."""
        for pid in children_of(self.pid):
            send_if_there(pid, signal.SIGCONT)
        self.send(signal.SIGCONT)

    def end(self, number: signal.Signals, seconds: float = 30) -> None:
        """Send a signal that asks the server to end, and kill it after `seconds`."""
        children = children_of(self.pid)
        self.popen.send_signal(number)
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._wait_until_gone(children)

    def kill(self) -> None:
        if self.is_running():
            self.popen.send_signal(signal.SIGSTOP)  # a stopped process starts no more children
            children = children_of(self.pid)
            for pid in children:
                send_if_there(pid, signal.SIGKILL)
            self.popen.kill()
            self.popen.wait()
            self._wait_until_gone(children)

    def _wait_until_gone(self, pids: list[int]) -> None:
        wait_until(lambda: not any(map(is_running, pids)), f"the children of {self.name} are gone")

    def failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}\n{tail(self.log)}")

    def wait_ready(self, ready: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until the server is ready; raise with its log if it ends or takes too long."""
        end = time.monotonic() + seconds
        while not ready():
            if not self.is_running():
                raise self.failure(f"ended with {self.popen.returncode} instead of starting")
            if time.monotonic() > end:
                self.kill()
                raise self.failure(f"was not ready after {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)


def suspend(pid: int) -> None:
    """Stop a process by SIGSTOP, and wait until all its threads stand still. The signal is sent
    before that, and on a busy machine they might answer something yet."""
    send_if_there(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    if tasks.exists():
        wait_until(lambda: _stands_still(tasks), f"{pid} stands still")


def _stands_still(tasks: Path) -> bool:
    threads = [int(thread.name) for thread in tasks.glob("[0-9]*")]
    return all(
        run_reaper.stat(thread)[:1] in ([], ["T"], ["t"], ["Z"], ["X"]) for thread in threads
    )


def send_if_there(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def launch(
    name: str,
    command: Sequence[str | Path],
    user: User,
    directory: Path,
    *,
    death_signal: DeathSignal,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start a server whose output goes to `log` in its folder.

    The kernel sends it `death_signal` if this process is killed, and the run's reaper ends what is
    left of it. The server has its own session, so that only this process receives an interrupt from
    the keyboard.
    """
    assert not os.environ.get("ONCEKEY_QUICK"), f"make quick starts no servers, and this is {name}"
    log = directory / "log"
    with log.open("ab") as output:
        popen = subprocess.Popen(
            [*user.prefix(), *_tied_to_this_process(death_signal), *map(str, command)],
            cwd=directory,
            env=clean_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **user.options(),
        )
    note_launched(popen.pid)
    return Process(name, log, popen)


_stay = False


@contextmanager
def staying_until_the_run_ends() -> Iterator[None]:
    """Servers that are launched in this block are not tied to this process, but to its run."""
    global _stay
    _stay = True
    try:
        yield
    finally:
        _stay = False


def _tied_to_this_process(death_signal: DeathSignal) -> Iterator[str]:
    """Yield a prefix by which the kernel signals the server when this process is gone."""
    # The kernel watches the thread that started the server, so only the main thread will do.
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and not _stay and shutil.which("setpriv"):
        yield from ("setpriv", "--pdeathsig", death_signal.removeprefix("SIG"), "--")


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log; nothing if there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
