"""Starts a command that runs until a signal ends it, or that asks questions at a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Queue
from typing import Any

from tests.support.servers import processes

PATIENCE_SECONDS = 240


class Running:
    """A running command; its lines arrive as it prints them."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out = self._read(self._process.stdout)
        self.err = self._read(self._process.stderr)

    def _read(self, stream: Any) -> Queue[str]:
        lines: Queue[str] = Queue()

        def read() -> None:
            for line in stream:
                lines.put(line)

        threading.Thread(target=read, daemon=True).start()
        return lines

    def line(self) -> str:
        return self.out.get(timeout=PATIENCE_SECONDS)

    def round(self) -> Any:
        return json.loads(self.line())

    def end(self, how: signal.Signals) -> int:
        self.signal(how)
        return self.wait()

    def signal(self, how: signal.Signals) -> None:
        if how == signal.SIGSTOP:
            processes.suspend(self._process.pid)
        else:
            self._process.send_signal(how)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


Start = Callable[..., Running]


class Terminal:
    """A terminal that a command runs at."""

    def __init__(self, process: subprocess.Popen[bytes], file: int) -> None:
        self._process = process
        self._file = file

    def expect(self, text: str) -> str:
        """Reads until this text was shown, and returns all that was read."""
        seen = ""
        while text not in seen:
            assert select.select([self._file], [], [], PATIENCE_SECONDS)[0], seen
            seen += os.read(self._file, 4_096).decode(errors="replace")
        return seen

    def type(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())

    def end(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)


@contextmanager
def at_terminal(command: Sequence[str], **environment: str) -> Iterator[Terminal]:
    """Runs a command at a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **environment}
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
