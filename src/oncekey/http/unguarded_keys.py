"""Reports keys on requests that nothing guards, whose clients believe that they are protected.

A client is told by a header of the response, the app's people by a log line now and then and by an
event for each; or the request is refused. Safe methods are left alone: to repeat them does no harm.
Owns what is said; the adapters know when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.core.events import Event, EventKind
from oncekey.http import problem as problems
from oncekey.http.exchange import ATTEMPT, UNPROTECTED, Exchange
from oncekey.http.message import App, Headers, Message, Receive, Response, Scope, Send
from oncekey.http.rules import SAFE_METHODS

MODES: Final = ("warn", "refuse")
# In a scope or environ: a list that a guard further inside adds to when it takes the key.
KEY_GUARDED: Final = "oncekey.taken"
UNGUARDED_HEADERS: Final[Headers] = ((UNPROTECTED, b"unguarded"),)
LOG_EVERY_SECONDS: Final = 60
_SHOWN_MAX_CHARS: Final = 100

_log = logging.getLogger("oncekey")


class UnguardedKeys:
    """What one app does about them."""

    def __init__(
        self,
        exchange: Exchange,
        notify: Callable[[Event], object],
        mode: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode not in MODES:
            raise ConfigurationError(f"unguarded={mode!r} must be 'warn' or 'refuse'")
        self.refuses = mode == "refuse"
        self.seen = 0  # requests of this kind so far
        self._exchange = exchange
        self._notify = notify
        self._clock = clock
        self._logged_at: float | None = None
        self._logged = 0

    def is_reported(self, method: str, scope: Mapping[str, Any]) -> bool:
        """Whether such a request is ours to tell of. One that has an attempt is guarded already,
        and one that is watched is told of by whoever stands outside, unless it is refused."""
        is_ours = self.refuses or KEY_GUARDED not in scope
        return is_ours and method.upper() not in SAFE_METHODS and scope.get(ATTEMPT) is None

    def note(self, method: str, path: str) -> None:
        """Count it, tell subscribers, and log it unless that was done a moment ago."""
        self.seen += 1
        self._notify(Event(EventKind.UNGUARDED, self._exchange.operation, "", ""))
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LOG_EVERY_SECONDS:
            return
        count, self._logged, self._logged_at = self.seen - self._logged, self.seen, now
        _log.warning(
            "%d request(s) with an Idempotency-Key that no rule or decorator guards, the last one "
            "%.20s %.100r: its client is not protected. Guard it, or refuse such keys with "
            'unguarded="refuse"',
            count,
            method,
            path[:_SHOWN_MAX_CHARS],
        )

    def refusal(self, prefix: str = "") -> Response:
        """For an app that is mounted under `prefix`."""
        return self._exchange.under(prefix).problem_response(problems.UNGUARDED)


def mark_key_guarded(scope: Any) -> None:
    """Say that the key of this request is heeded, to whoever watches outside."""
    watching: list[bool] | None = scope.get(KEY_GUARDED)
    if watching is not None:
        watching.append(True)


async def run_marked(
    app: App, unguarded: UnguardedKeys, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run an ASGI app for a request whose key nothing out here guards. Its response is marked, and
    the request reported, unless a guard further inside takes the key."""
    if KEY_GUARDED in scope:  # a guard further outside reports it
        await app(scope, receive, send)
        return
    taken: list[bool] = []
    scope[KEY_GUARDED] = taken

    async def send_marked(message: Message) -> None:
        if message["type"] == "http.response.start" and not taken:
            unguarded.note(scope["method"], scope["path"])
            message = {**message, "headers": [*message.get("headers", ()), *UNGUARDED_HEADERS]}
        await send(message)

    await app(scope, receive, send_marked)
