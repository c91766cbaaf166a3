"""Starts a command that runs until a signal ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

PATIENCE_SECONDS = 60


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
        self._process.send_signal(how)
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


Start = Callable[..., Running]
