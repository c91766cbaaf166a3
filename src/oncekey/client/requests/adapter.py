"""The client for the requests library: an adapter to mount on a session.

    session.mount("https://", IdempotentAdapter())

The adapter makes single tries and closes what they leave behind. When to try again is decided in
retry_flow.py.
"""

from __future__ import annotations

from typing import Any, Unpack

import requests
from requests.adapters import DEFAULT_POOLBLOCK, DEFAULT_POOLSIZE, HTTPAdapter
from requests.exceptions import ReadTimeout

from oncekey.client.body_reader import ReadDeadline
from oncekey.client.client_settings import Options, Settings
from oncekey.client.errors import gets_no_key
from oncekey.client.request_drivers import deliver_sync
from oncekey.client.requests.bodies import read_request, read_response
from oncekey.client.requests.request import INTENT_HEADER, RequestsRequest, read_timeout_of
from oncekey.client.requests.urllib3_hooks import install_hooks
from oncekey.client.retry_clock import Clock, SystemClock
from oncekey.client.retry_effects import SendRequest, TryResult
from oncekey.client.retry_rules import read_head


class IdempotentAdapter(HTTPAdapter):
    """Sends each POST and PATCH under one key, and again under the same key if that is safe.

    The options are those of `Settings`; those of the pool are those of requests, except for
    `max_retries`, which has no place here. An intent for the journal comes in the header
    `Oncekey-Intent`, which is not sent.
    """

    __attrs__ = [*HTTPAdapter.__attrs__, "_settings", "_clock"]  # noqa: RUF012, like that of its base

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
        install_hooks(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **named: Any) -> Any:
        manager = super().proxy_manager_for(*args, **named)
        install_hooks(manager)
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
                raise gets_no_key(request.method or "", f"the header {INTENT_HEADER}")
            return super().send(request, timeout=timeout, **how)
        body = read_request(request, self._settings.body_max)
        logical = RequestsRequest(self._settings, self._clock, request, body)

        def send(effect: SendRequest) -> TryResult:
            return self._try(logical, effect, timeout, how)

        return deliver_sync(logical, self._clock, send, requests.Response.close)

    def _try(
        self, logical: RequestsRequest, effect: SendRequest, timeout: Any, how: dict[str, Any]
    ) -> TryResult:
        settings = self._settings
        logical.remove_intent()
        try:
            within = logical.timeout(timeout, effect.deadline)
            response = super().send(logical.request, timeout=within, **how)
        except Exception as error:
            return logical.failed(error)
        head = read_head(response.status_code, response.headers, settings.replay_headers)
        deadline = ReadDeadline(self._clock, effect.deadline, ReadTimeout)
        try:
            body = read_response(
                response,
                settings.read_ahead,
                deadline,
                read_timeout_of(timeout),
                may_stream=not head.retried,
            )
        except Exception as error:
            return logical.received(response, head, None, error)
        return logical.received(response, head, body)
