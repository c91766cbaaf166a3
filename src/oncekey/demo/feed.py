"""What came in and what was answered, for whoever watches: a bounded list, and the ASGI wrapper
that fills it.

Owns how an answer is named. It sees requests from the outside, as a proxy would, and changes none.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

from oncekey.demo.keeping import Keeping
from oncekey.demo.scene import Got

ENTRIES_MAX = 200
_TEXT_MAX = 80
_PROBLEM_MAX_BYTES = 4_096
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. `got` is "running" until it is answered."""

    number: int
    server: str
    method: str
    path: str
    who: str
    key: str
    at: float
    got: str = RUNNING
    status: int = 0
    ms: int = 0


class Feed:
    """The latest requests of all servers; `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self.counts: Counter[str] = Counter()
        self._entries: deque[Seen] = deque(maxlen=ENTRIES_MAX)

    def put(self, seen: Seen) -> None:
        """A request that began, or the same one when it has ended."""
        self.version += 1
        if seen.got != RUNNING:
            self.counts[seen.got] += 1
        for at, known in enumerate(self._entries):
            if (known.server, known.number) == (seen.server, seen.number):
                self._entries[at] = seen
                return
        self._entries.append(seen)

    def killed(self, server: str) -> None:
        """What ran on this server will never be answered."""
        for known in list(self._entries):
            if known.server == server and known.got == RUNNING:
                self.put(replace(known, got=Got.KILLED, ms=round((time.time() - known.at) * 1000)))

    def latest(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [asdict(seen) for seen in reversed(self._entries)]


class Watch:
    """Wraps an app and tells `put` of every request that is not the page's own."""

    def __init__(
        self, app: Any, *, server: str, keeping: Keeping, put: Callable[[Seen], None]
    ) -> None:
        self.app = app
        self._server = server
        self._keeping = keeping
        self._put = put
        self._numbers = count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path == "/" or path.startswith(("/demo/", "/favicon")):
            await self.app(scope, receive, send)
            return
        seen = self._began(scope)
        answer = _Heard()

        async def hear(message: Any) -> None:
            answer.hear(message)
            await send(message)

        self._put(seen)
        try:
            await self.app(scope, receive, hear)
        finally:
            ms = round((time.time() - seen.at) * 1000)
            self._put(replace(seen, got=answer.got(), status=answer.status, ms=ms))

    def _began(self, scope: Any) -> Seen:
        headers = dict(scope["headers"])
        account = self._keeping.account_of(headers.get(b"authorization", b""))
        return Seen(
            number=next(self._numbers),
            server=self._server,
            method=scope["method"][:_TEXT_MAX],
            path=scope["path"][:_TEXT_MAX],
            who=account.name if account else "",
            key=headers.get(b"idempotency-key", b"").decode("latin-1")[:_TEXT_MAX],
            at=time.time(),
        )


class _Heard:
    """An answer as far as it has to be known to be named."""

    def __init__(self) -> None:
        self.status = 0
        self._replayed = False
        self._is_problem = False
        self._body = b""

    def hear(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            self.status = message["status"]
            self._replayed = headers.get(b"x-idempotency-replayed") == b"true"
            self._is_problem = b"problem+json" in headers.get(b"content-type", b"")
        elif self._is_problem and len(self._body) < _PROBLEM_MAX_BYTES:
            self._body += message.get("body", b"")

    def got(self) -> Got:
        problem = ""
        if self._is_problem:
            try:
                problem = str(json.loads(self._body).get("code", ""))
            except ValueError:
                pass  # longer than what is looked at
        return name_of(self.status, replayed=self._replayed, problem=problem)


def name_of(status: int, *, replayed: bool, problem: str) -> Got:
    """What an answer is called; `problem` is the code in its problem details."""
    if replayed:
        return Got.REPLAYED
    if problem == "in-flight":
        return Got.IN_FLIGHT
    if problem == "key-reused":
        return Got.MISMATCH
    if status == 402:
        return Got.DECLINED
    if 200 <= status < 300:
        return Got.RAN
    return Got.REFUSED if 400 <= status < 500 else Got.FAILED
