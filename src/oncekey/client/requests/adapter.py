"""The client for the requests library: an adapter to mount on a session.

    session.mount("https://", IdempotentAdapter())

Owns sending one try and closing what came of it. The rules are in rules.py, their order in flow.py.
"""

from __future__ import annotations

from typing import Any, Unpack

import requests
from requests.adapters import DEFAULT_POOLBLOCK, DEFAULT_POOLSIZE, HTTPAdapter

from oncekey.client import retry_rules
from oncekey.client.drivers import deliver_blocking
from oncekey.client.errors import unguarded
from oncekey.client.requests.bodies import load, take
from oncekey.client.requests.request import INTENT_HEADER, RequestsErrand, read_timeout_of
from oncekey.client.requests.urllib3_hooks import attend
from oncekey.client.retry_clock import Clock, SystemClock
from oncekey.client.retry_effects import Answered, Broke, Send
from oncekey.client.settings import Options, Settings


class IdempotentAdapter(HTTPAdapter):
    """Sends each POST and PATCH under one key, and again under the same key where that is safe.

    Options are those of `Settings`; the pool's are those of requests, whose own `max_retries` has
    no place here. An intent for the journal comes in the header `Oncekey-Intent`, which is not
    sent.
    """

    __attrs__ = [*HTTPAdapter.__attrs__, "_settings", "_clock"]  # noqa: RUF012, as above it

    def __init__(
        self,
        *,
        pool_connections: int = DEFAULT_POOLSIZE,
        pool_maxsize: int = DEFAULT_POOLSIZE,
        pool_block: bool = DEFAULT_POOLBLOCK,
        clock: Clock | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._settings = Settings(**options)
        self._clock = clock or SystemClock()
        super().__init__(
            pool_connections=pool_connections, pool_maxsize=pool_maxsize, pool_block=pool_block
        )

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, **named)
        attend(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **named: Any) -> Any:
        manager = super().proxy_manager_for(*args, **named)
        attend(manager)
        return manager

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        how = {"stream": stream, "verify": verify, "cert": cert, "proxies": proxies}
        if not self._settings.guards(request.method or ""):
            if INTENT_HEADER in request.headers:
                raise unguarded(request.method or "", f"the header {INTENT_HEADER}")
            return super().send(request, timeout=timeout, **how)
        body = load(request, self._settings.body_max)
        errand = RequestsErrand(self._settings, self._clock, request, body)

        def try_once(ask: Send) -> Answered | Broke:
            return self._try(errand, ask, request, timeout, how)

        return deliver_blocking(errand, self._clock, try_once, requests.Response.close)

    def _try(
        self,
        errand: RequestsErrand,
        ask: Send,
        request: requests.PreparedRequest,
        timeout: Any,
        how: dict[str, Any],
    ) -> Answered | Broke:
        errand.hide_intent()
        until = errand.until(ask)
        try:
            response = super().send(request, timeout=errand.timeout(timeout, until), **how)
        except Exception as error:
            return errand.broke(error)
        head = errand.head(response)
        most, flows_on = self._settings.held_bytes, not retry_rules.judge(head).again
        try:
            body = take(
                response, most, errand.pace(until), read_timeout_of(timeout), flows_on=flows_on
            )
        except Exception as error:
            return errand.answered(response, head, None, error)
        return errand.answered(response, head, body)
