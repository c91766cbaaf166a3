"""The stage of one demo run: its files, its servers, its processes, and their end.

Owns every resource: whatever ends the run (also Ctrl-C), processes are dead and stores closed
when the stage is left. The scenarios only use what is here.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from oncekey import Once, Policy
from oncekey.cli.demo.provider import Provider
from oncekey.cli.demo.queue import Queue

# Long enough that a retry sent right after the kill surely meets a living lease (a renewal is
# at most a third of it old), short enough that waiting for its end does not bore.
LEASE = "1500ms"
#: Nothing here takes this long; it turns a hang into an error.
PATIENCE_SECONDS = 30.0
WAIT = "30s"

Tell = Callable[[str], None]


class StageError(Exception):
    """The demo itself could not be played (not: a promise was broken)."""


class Stage:
    """Use as a context manager."""

    def __init__(self, folder: Path, tell: Tell = lambda text: None) -> None:
        self.folder = folder
        self._tell = tell
        self._playing = ""
        self.provider = provider_at(folder)
        self.queue = queue_at(folder)
        # A folder may be used again (--path): every run has orders of its own.
        self._run = secrets.token_hex(2)
        self._open = ExitStack()

    def begin(self, playing: str) -> None:
        """Say which scenario is on."""
        self._playing = playing
        self._tell(playing)

    def tell(self, doing: str) -> None:
        """Say what the scenario is busy with."""
        self._tell(f"{self._playing}: {doing}")

    def order(self, number: str) -> str:
        """The order a scenario is about; its id is the idempotency key."""
        return f"order-{number}-{self._run}"

    def server(self) -> Once:
        """A server of its own on the shared file: it knows nothing the others remember."""
        return self._open.enter_context(open_once(self.folder))

    def victim(self, role: str, order: str, *options: str) -> Victim:
        """A process of its own that does its work and then stands still, to be killed."""
        with _uninterrupted():  # from its birth on somebody must know whom to kill
            victim = Victim(self.folder, role, order, *options)
            self._open.callback(victim.kill)
        return victim

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()


class Victim:
    """A subprocess that says one word when it stands where we want to kill it."""

    def __init__(self, folder: Path, role: str, order: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "oncekey.cli.demo.victim", role, folder, order, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C in the terminal is for us; we then kill it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stands_still(self) -> None:
        """Return when it has done its work; StageError with its own words if it could not."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        watchdog.start()
        try:
            said = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not said:
            _, complaint = self._process.communicate()
            last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
            raise StageError(f"the process to be killed ended by itself: {last[0]}")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. A second time does nothing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment; it is delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_once(folder: Path) -> Once:
    return Once(store_url(folder), policy=Policy(lease=LEASE), raw_keys=True)


def store_url(folder: Path) -> str:
    return f"sqlite:///{quote(str(folder / 'oncekey.db'))}"


def provider_at(folder: Path) -> Provider:
    return Provider(folder / "provider.db")


def queue_at(folder: Path) -> Queue:
    return Queue(folder / "queue.db")
