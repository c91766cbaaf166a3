"""httpx's requests, responses and errors, in the words of the rules.

Owns how a try is cut to the deadline, and which error is which trouble. Must not decide to retry.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from oncekey.client.asks import SECOND_US, Trouble
from oncekey.client.clock import Readings
from oncekey.client.delivery import EXTENSION, Delivery
from oncekey.client.errand import Errand
from oncekey.client.errors import RetriesExhausted
from oncekey.client.message import Asked, key_in
from oncekey.client.settings import Settings

_PHASES: Final = ("connect", "read", "write", "pool")
_SHORTEST_SECONDS: Final = 0.001  # 0 would mean "do not wait at all"

# The first that fits. Errors of connecting come before anything is sent.
_TROUBLES: Final[tuple[tuple[type[Exception], Trouble], ...]] = (
    (httpx.ConnectTimeout, Trouble.CONNECT_TIMEOUT),
    (httpx.PoolTimeout, Trouble.POOL_TIMEOUT),
    (httpx.ConnectError, Trouble.CONNECT),
    (httpx.TimeoutException, Trouble.TIMEOUT),
    (httpx.NetworkError, Trouble.NETWORK),
    (httpx.RemoteProtocolError, Trouble.CLOSED),
)


class HttpxRetriesExhausted(RetriesExhausted, httpx.TransportError):
    """RetriesExhausted, for those who catch httpx's errors."""


def trouble_of(error: Exception) -> Trouble:
    """What an error of a transport means."""
    if isinstance(error, httpx.ConnectError) and _is_about_certificate(error):
        return Trouble.CERTIFICATE
    return next((found for kind, found in _TROUBLES if isinstance(error, kind)), Trouble.OTHER)


def _is_about_certificate(error: BaseException) -> bool:
    """httpx's error was made of httpcore's, and that of the one that tells. No further: below may
    be an error of long ago, which the caller is just dealing with."""
    below = error.__cause__
    lowest = below and (below.__cause__ or below.__context__)
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in (below, lowest))


class HttpxErrand(Errand[httpx.Response]):
    """One request of an httpx client, its body at hand."""

    exhausted = HttpxRetriesExhausted

    def __init__(
        self, settings: Settings, clock: Readings, request: httpx.Request, body: bytes
    ) -> None:
        asked = Asked(
            request.method.upper(), str(request.url), request.headers.get("Content-Type", ""), body
        )
        header = key_in(request.headers.get_list(settings.header), settings.header)
        super().__init__(settings, clock, asked, header, request.extensions.get(EXTENSION))
        self._request = request

    def next_try(self, until: int | None) -> httpx.Request:
        """The request to send this time; the caller's own is left as it is."""
        extensions = dict(self._request.extensions)
        if until is not None:
            given = extensions.get("timeout") or {}
            extensions["timeout"] = Clipped(given, lambda: until - self.clock.now())
        return httpx.Request(
            self._request.method,
            self._request.url,
            headers=self._request.headers,
            stream=self._request.stream,
            extensions=extensions,
        )

    def check(self, until: int | None) -> None:
        """For each part of an answer: one that trickles in is cut at the deadline too."""
        if until is not None and self.clock.now() >= until:
            raise httpx.ReadTimeout("the deadline passed while the answer came in")

    def _set_header(self, value: str) -> None:
        self._request.headers[self.settings.header] = value

    def _sent(self) -> object:
        return self._request

    def _trouble(self, error: Exception) -> Trouble:
        return trouble_of(error)

    def _status(self, response: httpx.Response) -> int:
        return response.status_code

    def _headers(self, response: httpx.Response) -> Mapping[str, Any]:
        return response.headers

    def _delivered(self, response: httpx.Response, delivery: Delivery) -> httpx.Response:
        response.extensions = {**response.extensions, EXTENSION: delivery}
        return response

    def _readable(self, response: httpx.Response) -> httpx.Response:
        response.request = self._request
        try:
            response.read()
        except httpx.HTTPError:
            pass  # encoded in a way that cannot be undone; its head still tells
        return response


class Clipped(dict[str, float | None]):
    """Timeouts that never outlast the deadline: each phase of a try reads what is left by then."""

    def __init__(self, given: Mapping[str, float | None], left_us: Callable[[], int]) -> None:
        self._given = given
        self._left_us = left_us
        super().__init__((phase, self._clip(phase)) for phase in _PHASES)

    def get(self, phase: str, default: Any = None) -> Any:
        return self._clip(phase) if phase in self else default

    def __getitem__(self, phase: str) -> float | None:
        return self._clip(phase)

    def _clip(self, phase: str) -> float:
        left = max(_SHORTEST_SECONDS, self._left_us() / SECOND_US)
        given = self._given.get(phase)
        return left if given is None else min(given, left)
