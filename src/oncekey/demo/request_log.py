"""The log of requests that the page shows: a bounded list, and the ASGI middleware that fills it.

Owns how a response is classified. The middleware sees requests as a proxy would and changes none.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

from oncekey.demo.data_dir import DataDir
from oncekey.demo.handlers import Handler, handler_of
from oncekey.demo.scenario_result import ResponseKind

ENTRIES_MAX = 200
_TEXT_MAX = 80
_PROBLEM_MAX_BYTES = 4_096
_PAGES_OWN = ("/demo/", "/docs", "/favicon")
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request. `got` is "running" until it has a response."""

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


class RequestLog:
    """The latest requests of all servers; `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._ended: dict[Handler, Counter[str]] = {one: Counter() for one in Handler}
        self._entries: deque[LoggedRequest] = deque(maxlen=ENTRIES_MAX)

    def put(self, request: LoggedRequest) -> None:
        """Adds a request that began, or replaces it when it has ended."""
        self.version += 1
        if request.got != RUNNING:
            self._ended[handler_of(request.path)][request.got] += 1
        for at, known in enumerate(self._entries):
            if (known.server, known.number) == (request.server, request.number):
                self._entries[at] = request
                return
        self._entries.append(request)

    def killed(self, server: str) -> None:
        """Marks the requests running on this server: they will never get a response."""
        for known in list(self._entries):
            if known.server == server and known.got == RUNNING:
                ms = round((time.time() - known.at) * 1000)
                self.put(replace(known, got=ResponseKind.KILLED, ms=ms))

    def totals(self, handler: Handler) -> dict[str, int]:
        """How many requests of one handler got each kind of response, since the start."""
        running = sum(
            known.got == RUNNING and handler_of(known.path) is handler for known in self._entries
        )
        return {**self._ended[handler], RUNNING: running}

    def latest(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [asdict(request) for request in reversed(self._entries)]


class RequestLogMiddleware:
    """Wraps an app and calls `put` for every request that is not the page's own."""

    def __init__(
        self, app: Any, *, server: str, data_dir: DataDir, put: Callable[[LoggedRequest], None]
    ) -> None:
        self.app = app
        self._server = server
        self._data_dir = data_dir
        self._put = put
        self._numbers = count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path == "/" or path.startswith(_PAGES_OWN):
            await self.app(scope, receive, send)
            return
        request = self._began(scope)
        response = _ResponseSummary(scope["method"])

        async def observe(message: Any) -> None:
            response.observe(message)
            await send(message)

        self._put(request)
        try:
            await self.app(scope, receive, observe)
        finally:
            ms = round((time.time() - request.at) * 1000)
            self._put(replace(request, got=response.kind(), status=response.status, ms=ms))

    def _began(self, scope: Any) -> LoggedRequest:
        headers = dict(scope["headers"])
        account = self._data_dir.account_of(headers.get(b"authorization", b""))
        return LoggedRequest(
            number=next(self._numbers),
            server=self._server,
            method=scope["method"][:_TEXT_MAX],
            path=scope["path"][:_TEXT_MAX],
            who=account.name if account else "",
            key=headers.get(b"idempotency-key", b"").decode("latin-1")[:_TEXT_MAX],
            at=time.time(),
        )


class _ResponseSummary:
    """As much of a response as its classification needs."""

    def __init__(self, method: str) -> None:
        self.status = 0
        self._is_read = method in ("GET", "HEAD")
        self._replayed = False
        self._is_problem = False
        self._body = b""

    def observe(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            self.status = message["status"]
            self._replayed = headers.get(b"x-idempotency-replayed") == b"true"
            self._is_problem = b"problem+json" in headers.get(b"content-type", b"")
        elif self._is_problem and len(self._body) < _PROBLEM_MAX_BYTES:
            self._body += message.get("body", b"")

    def kind(self) -> ResponseKind:
        if self._is_read and 200 <= self.status < 300:
            return ResponseKind.READ
        problem = ""
        if self._is_problem:
            try:
                problem = str(json.loads(self._body).get("code", ""))
            except ValueError:
                pass  # longer than what is kept
        return kind_of_response(self.status, replayed=self._replayed, problem=problem)


def kind_of_response(status: int, *, replayed: bool, problem: str) -> ResponseKind:
    """Classifies a response; `problem` is the code in its problem details."""
    if replayed:
        return ResponseKind.REPLAYED
    if problem == "in-flight":
        return ResponseKind.IN_FLIGHT
    if problem == "key-reused":
        return ResponseKind.MISMATCH
    if status == 402:
        return ResponseKind.DECLINED
    if 200 <= status < 300:
        return ResponseKind.RAN
    return ResponseKind.REFUSED if 400 <= status < 500 else ResponseKind.FAILED
