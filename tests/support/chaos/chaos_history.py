"""The history of a run: one line of JSON for each thing that somebody saw or did.

Every process appends to a file of its own, unbuffered, so that a kill loses nothing; afterwards
the files are merged by time. Times are seconds of the machine's monotonic clock, which all
processes share, counted from the start of the run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]

START_VARIABLE: Final = "CHAOS_START"
FOLDER_VARIABLE: Final = "CHAOS_FOLDER"
SUFFIX: Final = ".events"


class HistoryFile:
    """The file that one process appends to. A line is one write, so lines are never mixed."""

    def __init__(self, folder: Path, name: str, start: float) -> None:
        self._start = start
        path = folder / f"{name}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def now(self) -> float:
        """Return the time since the start of the run, in seconds."""
        return round(time.monotonic() - self._start, 6)

    def write(self, kind: str, *, at: float | None = None, **fields: Any) -> None:
        event = {"at": self.now() if at is None else at, "kind": kind, **fields}
        os.write(self._file, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def history_of_environment(name: str) -> HistoryFile:
    """Return the file of a process that the run has started, by its environment."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    return HistoryFile(folder, name, float(os.environ[START_VARIABLE]))


def merged(folder: Path, began: float) -> list[Event]:
    """Return everything that was written into a folder, by time. The times of the result count
    from `began`, as those of the plan do."""
    events = [event for path in sorted(folder.glob(f"*{SUFFIX}")) for event in read_events(path)]
    for event in events:
        for name in ("at", "until"):
            if name in event:
                event[name] = round(event[name] - began, 6)
    return sorted(events, key=lambda event: event["at"])


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file. A last line without an end was cut by a kill, and is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def write_events(path: Path, events: Iterable[Event]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for event in events:
            file.write(json.dumps(event, separators=(",", ":")) + "\n")
