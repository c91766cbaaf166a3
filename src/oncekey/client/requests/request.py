"""A logical request of the requests library: its key and identity, its timeouts, its errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, Final

import requests
import urllib3
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import InvalidURL, ProxyError, ReadTimeout, RequestException
from urllib3 import exceptions as below

from oncekey.client.client_settings import Settings
from oncekey.client.delivery import EXTENSION, Delivery
from oncekey.client.errors import RetriesExhausted
from oncekey.client.key_source import choose_key
from oncekey.client.logical_request import LogicalRequest
from oncekey.client.request_identity import REMOVED_KEY, RequestIdentity, key_from_header
from oncekey.client.requests.urllib3_hooks import TryTimeout
from oncekey.client.retry_clock import ClockReader
from oncekey.client.retry_effects import SECOND_US, TransportFailure
from oncekey.core.errors import InvalidKey

INTENT_HEADER: Final = "Oncekey-Intent"
_SHORTEST_SECONDS: Final = 0.001  # urllib3 refuses 0


class RequestsRetriesExhausted(RetriesExhausted, RequestException):
    """RetriesExhausted, for callers that catch the errors of requests."""


# --- errors -------------------------------------------------------------------------------------

# The first type that fits decides, of the error itself or of an error inside it. Errors of
# connecting come before anything is sent.
_FAILURES: Final[tuple[tuple[tuple[type[Exception], ...], TransportFailure], ...]] = (
    ((ssl.SSLCertVerificationError,), TransportFailure.CERTIFICATE),
    ((below.ClosedPoolError,), TransportFailure.OTHER),  # somebody closed the session
    ((below.NewConnectionError,), TransportFailure.CONNECT),
    ((below.ConnectTimeoutError,), TransportFailure.CONNECT_TIMEOUT),
    ((below.EmptyPoolError,), TransportFailure.POOL_TIMEOUT),
    ((ProxyError,), TransportFailure.OTHER),  # the proxy could be reached, and refused
    ((ReadTimeout, below.ReadTimeoutError), TransportFailure.TIMEOUT),
    ((NoConnection, below.SSLError), TransportFailure.NETWORK),
    ((below.ProtocolError,), TransportFailure.CLOSED),
)


def failure_of(error: Exception) -> TransportFailure:
    """The kind of failure that an error of an adapter means."""
    errors = tuple(_with_inner_errors(error))
    for kinds, failure in _FAILURES:
        if any(isinstance(one, kinds) for one in errors):
            return failure
    return TransportFailure.OTHER


def _with_inner_errors(error: BaseException) -> Iterator[BaseException]:
    """The error and those it was made of. Its context does not count: it may be an older error that
    the caller was just handling."""
    yield error
    for inner in (getattr(error, "reason", None), *error.args):
        if isinstance(inner, BaseException):
            yield from _with_inner_errors(inner)


# --- one request --------------------------------------------------------------------------------


class RequestsRequest(LogicalRequest[requests.Response]):
    """A request of a session, whose body has been read."""

    exhausted_error = RequestsRetriesExhausted
    unsent_error = InvalidURL
    chains_cause = False  # urllib3 puts the whole URL into its errors

    def __init__(
        self,
        settings: Settings,
        clock: ClockReader,
        request: requests.PreparedRequest,
        body: bytes,
    ) -> None:
        """Raises NotSent or InvalidKey if the request must not be sent."""
        content_type = _text(request.headers.get("Content-Type")) or ""
        method, url = (request.method or "").upper(), request.url or ""
        identity = RequestIdentity(method, url, content_type, body, settings.account)
        removed = getattr(request, REMOVED_KEY, None)
        if removed is not None:
            request.headers.setdefault(settings.header, removed)
        value = _text(request.headers.get(settings.header))
        header = key_from_header([] if value is None else [value], settings.header)
        intent = request.headers.get(INTENT_HEADER)
        given = None if intent is None else {"intent": _intent(intent)}
        choice = choose_key(settings, identity, header, given)
        super().__init__(settings, clock, request, identity, choice)
        self._intent = intent

    def remove_intent(self) -> None:
        """Take the intent off the request, because the server must not see it. It stays there until
        the first try: before that the request has no key, and must be found by its intent if the
        caller sends it again."""
        self.request.headers.pop(INTENT_HEADER, None)

    def timeout(self, given: Any, deadline: int | None) -> Any:
        """The caller's timeouts, cut to the deadline."""
        if deadline is None:
            return given
        left = max(_SHORTEST_SECONDS, (deadline - self.clock.now()) / SECOND_US)
        if isinstance(given, urllib3.Timeout):
            own = given.total
            total = min(own, left) if isinstance(own, (int, float)) else left
            return TryTimeout(total=total, connect=given._connect, read=given._read)
        connect, read = given if isinstance(given, tuple) else (given, given)
        return TryTimeout(total=left, connect=connect, read=read)

    def remove_key(self) -> None:
        super().remove_key()
        if self._intent is not None:
            self.request.headers[INTENT_HEADER] = self._intent

    def classify(self, error: Exception) -> TransportFailure:
        return failure_of(error)

    def attach(self, response: requests.Response, delivery: Delivery) -> None:
        setattr(response, EXTENSION, delivery)
        # These attributes are pickled: some caches keep responses that way.
        setattr(response, "__attrs__", [*response.__attrs__, EXTENSION])  # noqa: B010

    def readable(self, response: requests.Response) -> requests.Response:
        try:
            _ = response.content
        except RequestException:
            pass  # its encoding cannot be undone, but its head can still be read
        return response


def read_timeout_of(given: Any) -> float | None:
    """The read timeout that the caller gave."""
    if isinstance(given, urllib3.Timeout):
        begun = given.clone()
        begun.start_connect()
        return begun.read_timeout
    read: float | None = given[1] if isinstance(given, tuple) else given
    return read


def _intent(value: str | bytes) -> str:
    """The intent as text. It is never sent, so it is not limited to latin-1."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidKey(
            f"the intent in {INTENT_HEADER} is bytes, but not UTF-8; give it as text. Nothing was "
            "sent"
        ) from error


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
