"""Reports requests that have a key but are not guarded: their clients believe to be protected.

The response gets a header, each request an event, and the log a line now and then; or the request
is refused. Safe methods are ignored, because repeating them does no harm. Owns the reports; the
adapters know when a request is unguarded.
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
# In a scope or environ: a list to which a guard further inside appends if it guards the request.
KEY_GUARDED: Final = "oncekey.key_guarded"
UNGUARDED_HEADERS: Final[Headers] = ((UNPROTECTED, b"unguarded"),)
LOG_EVERY_SECONDS: Final = 60
_SHOWN_MAX_CHARS: Final = 100

_log = logging.getLogger("oncekey")


class UnguardedKeys:
    """What one app does about unguarded keys: it warns, or refuses the request."""

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
        self.count = 0  # of such requests so far
        self._exchange = exchange
        self._notify = notify
        self._clock = clock
        self._logged_at: float | None = None
        self._logged = 0

    def is_reported(self, method: str, scope: Mapping[str, Any]) -> bool:
        """Whether a request with a key, if it is unguarded, is to be reported here. A request that
        has an attempt is guarded already, and a guard further outside reports the one it watches,
        unless it is refused here."""
        is_first = KEY_GUARDED not in scope
        return (
            (self.refuses or is_first)
            and method.upper() not in SAFE_METHODS
            and scope.get(ATTEMPT) is None
        )

    def report(self, method: str, path: str) -> None:
        """Count the request, emit an event, and log it unless another was logged a moment ago."""
        self.count += 1
        self._notify(Event(EventKind.UNGUARDED, self._exchange.operation, "", ""))
        now = self._clock()
        if self._logged_at is not None and now - self._logged_at < LOG_EVERY_SECONDS:
            return
        count, self._logged, self._logged_at = self.count - self._logged, self.count, now
        _log.warning(
            "%d request(s) with an Idempotency-Key that no rule or decorator guards, the last one "
            "%.20s %.100r: its client is not protected. Guard it, or refuse such keys with "
            'unguarded="refuse"',
            count,
            method,
            path[:_SHOWN_MAX_CHARS],
        )

    def refusal(self, prefix: str = "") -> Response:
        """The refusal of an unguarded key, by an app that is mounted under `prefix`."""
        return self._exchange.under(prefix).problem_response(problems.UNGUARDED)


def mark_key_guarded(scope: Any) -> None:
    """Let the guards further outside know that the key of this request is guarded."""
    guarded: list[bool] | None = scope.get(KEY_GUARDED)
    if guarded is not None:
        guarded.append(True)


async def run_marked(
    app: App, unguarded: UnguardedKeys, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run an ASGI app for a request whose key is not guarded here. Its response gets a header, and
    the request is reported, unless a guard further inside guards it."""
    if KEY_GUARDED in scope:  # a guard further outside reports it
        await app(scope, receive, send)
        return
    guarded: list[bool] = []
    scope[KEY_GUARDED] = guarded

    async def send_marked(message: Message) -> None:
        if message["type"] == "http.response.start" and not guarded:
            unguarded.report(scope["method"], scope["path"])
            message = {**message, "headers": [*message.get("headers", ()), *UNGUARDED_HEADERS]}
        await send(message)

    await app(scope, receive, send_marked)
