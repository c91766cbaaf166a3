"""Guards as teams write them by hand, each with one fault that it is known for, and a good one.

`handmade_app(HandmadeGuard(fault, effects))` is one behind Flask. They have no failpoints, so
crashes are not checked.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NamedTuple

from oncekey.testing import AsyncEffects, Effects

CALLERS = {"Bearer a": "alice", "Bearer b": "bob"}


class Reply(NamedTuple):
    status: int
    body: Any


class HandmadeGuard:
    """A dict of keys under a lock. `fault` names what is wrong with it; "" for nothing."""

    def __init__(self, fault: str, effects: Effects) -> None:
        self.fault = fault
        self._effects = effects
        self._lock = threading.Lock()
        self._replies: dict[Any, tuple[Any, Reply | None]] = {}  # key -> request, reply

    def charge(self, caller: str | None, key: str, request: Any) -> Reply:
        if self.fault == "unguarded":
            return self._run(request)
        if caller is None and self.fault != "replay before authentication":
            return Reply(401, "who are you?")
        id = key if caller is None or self.fault == "unscoped" else (caller, key)
        if self.fault == "replay before authentication" and caller is None:
            id = ("alice", key)
            if id not in self._replies:
                return Reply(401, "who are you?")
        if self.fault == "check then act":
            found = self._replies.get(id)
        else:
            with self._lock:
                found = self._replies.get(id)
                if found is None:
                    self._replies[id] = (request, None)
        if found is not None:
            return self._duplicate(id, request, *found)
        return self._first(id, request)

    def _first(self, id: Any, request: Any) -> Reply:
        reply = self._run(request)
        if self.fault == "never finished":
            return reply
        stored = reply._replace(status=200) if self.fault == "status lost" else reply
        self._replies[id] = (request, stored)
        if self.fault == "outcome forgotten":
            del self._replies[id]
        return reply

    def _duplicate(self, id: Any, request: Any, first: Any, reply: Reply | None) -> Reply:
        if request != first and self.fault != "requests not compared":
            if self.fault == "mismatch destroys the record":
                self._replies.pop(id, None)
            return Reply(500 if self.fault == "mismatch crashes" else 422, "another request")
        if reply is None:
            return Reply(500 if self.fault == "duplicates fail" else 409, "in flight")
        return reply

    def _run(self, request: Any) -> Reply:
        self._effects.record(request)
        return Reply(201, {"charge": len(self._effects), "request": request})


def handmade_app(guard: HandmadeGuard) -> Any:
    """The guard behind Flask: its test client."""
    from flask import Flask, request

    app = Flask("handmade")

    @app.post("/charges")
    def charge() -> Any:
        caller = CALLERS.get(request.headers.get("Authorization", ""))
        reply = guard.charge(caller, request.headers["Idempotency-Key"], request.json)
        return {"body": reply.body}, reply.status

    return app.test_client()


class LostOnDisconnect:
    """An async guard that forgets a key whose client left, although its operation has run."""

    def __init__(self, effects: AsyncEffects) -> None:
        self._effects = effects
        self._replies: dict[str, int] = {}

    async def __call__(self, key: str, request: Any) -> int:
        if key not in self._replies:
            await self._effects.record(request)
            await asyncio.sleep(0)
            self._replies[key] = len(self._effects)
        return self._replies[key]
