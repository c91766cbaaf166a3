"""A logical request of httpx: its key and identity, its timeouts, its errors and its response."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx

from oncekey.client.client_settings import Settings
from oncekey.client.delivery import EXTENSION, Delivery
from oncekey.client.errors import RetriesExhausted, gets_no_key
from oncekey.client.key_source import choose_key
from oncekey.client.logical_request import LogicalRequest
from oncekey.client.request_identity import REMOVED_KEY, RequestIdentity, key_from_header
from oncekey.client.retry_clock import ClockReader
from oncekey.client.retry_effects import SECOND_US, TransportFailure

_PHASES: Final = ("connect", "read", "write", "pool")
_SHORTEST_SECONDS: Final = 0.001  # 0 would mean "do not wait at all"

# The first type that fits decides. Errors of connecting come before anything is sent.
_FAILURES: Final[tuple[tuple[type[Exception], TransportFailure], ...]] = (
    (httpx.ConnectTimeout, TransportFailure.CONNECT_TIMEOUT),
    (httpx.PoolTimeout, TransportFailure.POOL_TIMEOUT),
    (httpx.ConnectError, TransportFailure.CONNECT),
    (httpx.TimeoutException, TransportFailure.TIMEOUT),
    (httpx.NetworkError, TransportFailure.NETWORK),
    (httpx.RemoteProtocolError, TransportFailure.CLOSED),
)


class HttpxRetriesExhausted(RetriesExhausted, httpx.TransportError):
    """RetriesExhausted, for callers that catch the errors of httpx."""


# --- errors --------------------------------------------------------------------------------------


def failure_of(error: Exception) -> TransportFailure:
    """The kind of failure that an error of a transport means."""
    if isinstance(error, httpx.ConnectError) and _is_about_certificate(error):
        return TransportFailure.CERTIFICATE
    kinds = (failure for kind, failure in _FAILURES if isinstance(error, kind))
    return next(kinds, TransportFailure.OTHER)


def _is_about_certificate(error: BaseException) -> bool:
    """httpx's error was raised from httpcore's, and that from the error of ssl. Errors further down
    may be older ones that the caller was just handling."""
    below = error.__cause__
    lowest = below and (below.__cause__ or below.__context__)
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in (below, lowest))


# --- one request ---------------------------------------------------------------------------------


class HttpxRequest(LogicalRequest[httpx.Response]):
    """A request of an httpx client, whose body has been read."""

    exhausted_error = HttpxRetriesExhausted
    unsent_error = httpx.UnsupportedProtocol

    def __init__(
        self, settings: Settings, clock: ClockReader, request: httpx.Request, body: bytes
    ) -> None:
        """Raises NotSent or InvalidKey if the request must not be sent."""
        identity = RequestIdentity(
            request.method.upper(),
            str(request.url),
            request.headers.get("Content-Type", ""),
            body,
            settings.account,
        )
        removed = getattr(request, REMOVED_KEY, None)
        if removed is not None:
            request.headers.setdefault(settings.header, removed)
        header = key_from_header(request.headers.get_list(settings.header), settings.header)
        given = request.extensions.get(EXTENSION)
        choice = choose_key(settings, identity, header, given)
        super().__init__(settings, clock, request, identity, choice)
        if given is not None:
            request.extensions[EXTENSION] = _SentExtension(given)
        self._timeouts: _DeadlineTimeouts | None = None

    def next_try(self, deadline: int | None) -> httpx.Request:
        """A copy of the request to send this time; the caller's own stays as it is."""
        extensions = dict(self.request.extensions)
        if deadline is not None:
            given = extensions.get("timeout") or {}
            extensions["timeout"] = self._timeouts = _DeadlineTimeouts(given, self.clock, deadline)
        return httpx.Request(
            self.request.method,
            self.request.url,
            headers=self.request.headers,
            stream=self.request.stream,
            extensions=extensions,
        )

    def restore_timeouts(self) -> None:
        """Whatever is read from now on is read with the caller's own timeouts."""
        if self._timeouts is not None:
            self._timeouts.is_restored = True

    def classify(self, error: Exception) -> TransportFailure:
        if isinstance(error, httpx.RequestError):
            # httpx does this to errors that reach the client. One that is kept as `last` does not.
            error.request = self.request
        return failure_of(error)

    def attach(self, response: httpx.Response, delivery: Delivery) -> None:
        response.extensions = {**response.extensions, EXTENSION: delivery}

    def readable(self, response: httpx.Response) -> httpx.Response:
        response.request = self.request
        try:
            response.read()
        except httpx.HTTPError:
            pass  # its encoding cannot be undone, but its head can still be read
        return response


class _SentExtension(dict[str, Any]):
    """The key or intent of a request that has been sent. httpx copies it to the request that a
    redirect makes, although it was not meant for that one."""


def refuse_key_or_intent(request: httpx.Request) -> None:
    """Raise NotSent if a request that gets no key comes with one, or with an intent."""
    given = request.extensions.get(EXTENSION)
    if given is not None and not isinstance(given, _SentExtension):
        raise gets_no_key(request.method, 'what is given for "oncekey" with the request')


class _DeadlineTimeouts(dict[str, float | None]):
    """Timeouts that end at the deadline: each phase of a try reads what is left by then."""

    def __init__(
        self, given: Mapping[str, float | None], clock: ClockReader, deadline: int
    ) -> None:
        self._given = given
        self._clock = clock
        self._deadline = deadline
        self.is_restored = False
        left = self._seconds_left()
        super().__init__((phase, _shorter(given.get(phase), left)) for phase in _PHASES)

    def get(self, phase: str, default: Any = None) -> Any:
        return self._clipped(phase) if phase in self else default

    def __getitem__(self, phase: str) -> float | None:
        return self._clipped(phase)

    def _clipped(self, phase: str) -> float | None:
        given = self._given.get(phase)
        return given if self.is_restored else _shorter(given, self._seconds_left())

    def _seconds_left(self) -> float:
        return max(_SHORTEST_SECONDS, (self._deadline - self._clock.now()) / SECOND_US)


def _shorter(given: float | None, left: float) -> float:
    return left if given is None else min(given, left)
