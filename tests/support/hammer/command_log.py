"""The log of a worker: one line per command, body and result, in a file of its own.

The line of a command is written when the reply has come, also if the worker then acts as if the
reply were lost (`seen` is False): the checker knows more than the workers do. Bodies that ran
through Once, and results that their callers got, have lines too. Times are microseconds of
CLOCK_MONOTONIC, which all processes of one host share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Finish,
    Release,
    Renew,
    Replay,
    Reply,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)

# Verbs of lines that are no command. The reply of a body is how it ended.
BODY, RESULT = "Body", "Result"
RETURNED, RAISED, NOT_STARTED = "Returned", "Raised", "NotStarted"


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One command and its reply; `reply` is the name of its type, or "error"."""

    key: str
    verb: str
    sent: int
    came: int
    reply: str
    seen: bool = True
    owner: str = ""
    fence: int = 0
    fingerprint: str = ""
    retry_safe: bool = False
    lease: int = 0
    state: int = 0
    body: str = ""
    note: str = ""
    given_fence: int = 0
    given_attempt: int = 0
    taken_over: bool = False
    given_state: int = 0
    given_body: str = ""
    given_fingerprint: str = ""
    given_note: str = ""
    deadline: int = 0  # of a body: until when its attempt believed that it held the key


def entry(command: Command, reply: Reply | None, sent: int, came: int, *, seen: bool) -> Entry:
    """The entry of one command."""
    values: dict[str, Any] = {}
    if isinstance(command, Claim | Finish | Renew | Release | SaveStep):
        values["owner"] = command.owner.hex()
    if isinstance(command, Finish | Renew | Release | SaveStep | Resolve):
        values["fence"] = command.fence or 0
    if isinstance(command, Claim):
        values |= {
            "fingerprint": command.fingerprint.hex(),
            "retry_safe": command.retry_safe,
            "lease": command.lease,
        }
    if isinstance(command, Renew):
        values["lease"] = command.lease
    if isinstance(command, Finish | Resolve):
        values |= {"state": int(command.state), "body": command.body.hex()}
    if isinstance(command, Resolve):
        values["note"] = command.note
    if isinstance(reply, Claimed):
        values |= {
            "given_fence": reply.fence,
            "given_attempt": reply.attempt,
            "taken_over": reply.taken_over,
        }
    if isinstance(reply, Replay):
        values |= {
            "given_fence": reply.fence,
            "given_attempt": reply.attempt,
            "given_state": int(reply.state),
            "given_body": reply.body.hex(),
        }
    if isinstance(reply, Unknown):
        values |= {
            "given_fence": reply.record.fence,
            "given_fingerprint": reply.record.fingerprint.hex(),
        }
    if isinstance(reply, Seen) and reply.record is not None:
        values["given_note"] = reply.record.note
    name = type(reply).__name__ if reply is not None else "error"
    verb = type(command).__name__
    return Entry(command.id.hex(), verb, sent, came, name, seen, **values)


class Log:
    """Appends entries with one write each, so that they survive the death of the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *entries: Entry) -> None:
        lines = [json.dumps(_non_defaults(entry)).encode() + b"\n" for entry in entries]
        os.write(self._file, b"".join(lines))

    def count(self, what: str, number: int = 1) -> None:
        """Count something that is no command: a crash, a sweep."""
        os.write(self._file, json.dumps({"count": what, "number": number}).encode() + b"\n")


def _non_defaults(entry: Entry) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    names = Entry.__slots__
    return {n: value for n in names if (value := getattr(entry, n)) != _DEFAULTS.get(n, _NONE)}


_NONE = object()
_DEFAULTS = {
    name: Entry.__dataclass_fields__[name].default
    for name in Entry.__slots__
    if name not in ("key", "verb", "sent", "came", "reply")
}


def read_logs(paths: Iterable[Path]) -> tuple[list[Entry], dict[str, int]]:
    """All entries of all processes, and the counts."""
    entries: list[Entry] = []
    counts: dict[str, int] = {}
    for line in _lines(paths):
        if "count" in line:
            counts[line["count"]] = counts.get(line["count"], 0) + line["number"]
        else:
            entries.append(Entry(**line))
    return entries, counts


def _lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for line in path.read_bytes().splitlines():
            yield json.loads(line)
