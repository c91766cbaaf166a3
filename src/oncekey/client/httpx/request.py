"""httpx's requests, responses and errors, in the words of the rules.

Owns how a try is cut to the deadline, and which error is which trouble. Must not decide to retry.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from oncekey.client.body_reader import Pace
from oncekey.client.delivery import EXTENSION, Delivery
from oncekey.client.errors import RetriesExhausted, unguarded
from oncekey.client.logical_request import Errand
from oncekey.client.request_identity import HIDDEN, Asked, key_in
from oncekey.client.retry_clock import Readings
from oncekey.client.retry_effects import SECOND_US, Answered, Broke, Trouble
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
            request.method.upper(),
            str(request.url),
            request.headers.get("Content-Type", ""),
            body,
            settings.account,
        )
        hidden = getattr(request, HIDDEN, None)
        if hidden is not None:
            request.headers.setdefault(settings.header, hidden)
        header = key_in(request.headers.get_list(settings.header), settings.header)
        given = request.extensions.get(EXTENSION)
        super().__init__(settings, clock, asked, header, given)
        if given is not None:
            request.extensions[EXTENSION] = Carried(given)
        self._request = request
        self._clipped: Clipped | None = None

    def next_try(self, until: int | None) -> httpx.Request:
        """The request to send this time; the caller's own is left as it is."""
        extensions = dict(self._request.extensions)
        if until is not None:
            given = extensions.get("timeout") or {}
            self._clipped = Clipped(given, lambda: until - self.clock.now())
            extensions["timeout"] = self._clipped
        return httpx.Request(
            self._request.method,
            self._request.url,
            headers=self._request.headers,
            stream=self._request.stream,
            extensions=extensions,
        )

    def unclip(self) -> None:
        """What is read from now on is read with the caller's own timeouts."""
        if self._clipped is not None:
            self._clipped.end()

    def pace(self, until: int | None) -> Pace:
        return Pace(self.clock, until, httpx.ReadTimeout)

    def broke(self, error: Exception) -> Broke:
        self._complete(error)
        return super().broke(error)

    def answered(
        self,
        response: httpx.Response,
        head: Answered,
        body: bytes | None,
        error: Exception | None = None,
    ) -> Answered:
        self._complete(error)
        return super().answered(response, head, body, error)

    def _complete(self, error: Exception | None) -> None:
        """httpx does this to errors that reach the client; one that is kept as `last` does not."""
        if isinstance(error, httpx.RequestError):
            error.request = self._request

    def _set_header(self, value: str) -> None:
        self._request.headers[self.settings.header] = value

    def _hide_key(self) -> None:
        setattr(self._request, HIDDEN, self._request.headers.pop(self.settings.header, None))

    def _take_back(self) -> None:
        self._request.headers.pop(self.settings.header, None)

    def _refused(self, error: Exception) -> bool:
        return isinstance(error, httpx.UnsupportedProtocol)

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


class Carried(dict[str, Any]):
    """What was given along with a request that has been sent: httpx copies it into the request
    that a redirect makes, where nobody has asked for it."""


def refuse_given(request: httpx.Request) -> None:
    """Raise NotSent where a request that gets no key comes with one, or with an intent."""
    given = request.extensions.get(EXTENSION)
    if given is not None and not isinstance(given, Carried):
        raise unguarded(request.method, 'what is given for "oncekey" with the request')


class Clipped(dict[str, float | None]):
    """Timeouts that never outlast the deadline: each phase of a try reads what is left by then."""

    def __init__(self, given: Mapping[str, float | None], left_us: Callable[[], int]) -> None:
        self._given = given
        self._left_us = left_us
        self._ended = False
        super().__init__((phase, self._clip(phase)) for phase in _PHASES)

    def get(self, phase: str, default: Any = None) -> Any:
        return self._clip(phase) if phase in self else default

    def __getitem__(self, phase: str) -> float | None:
        return self._clip(phase)

    def end(self) -> None:
        self._ended = True

    def _clip(self, phase: str) -> float | None:
        if self._ended:
            return self._given.get(phase)
        left = max(_SHORTEST_SECONDS, self._left_us() / SECOND_US)
        given = self._given.get(phase)
        return left if given is None else min(given, left)
