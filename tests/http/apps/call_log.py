"""Logs what a server does with a request: when its call begins and ends, and when its client goes.

A layer outside of everything else. The key of the request is a line in the files `begun`, `gone`
and `ended` of the folder that the app shares with its test.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["GUARDED_FOLDER"])
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class CallLog:
    """Logs the key of each request that has begun or ended, or whose client has gone."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async def logged_receive() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                log_key("gone", scope)
            return message

        log_key("begun", scope)
        try:
            await self.app(scope, logged_receive, send)
        finally:
            log_key("ended", scope)


def log_key(log: str, scope: Any) -> None:
    for name, value in scope.get("headers", ()):
        if name.lower() == b"idempotency-key":
            with (FOLDER / log).open("ab") as file:
                file.write(value + b"\n")
