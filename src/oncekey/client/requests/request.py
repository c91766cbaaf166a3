"""The requests library's requests, responses and errors, in the words of the rules.

Owns how a try is cut to the deadline, and which error is which trouble. Must not decide to retry.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

import requests
import urllib3
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import InvalidURL, ProxyError, ReadTimeout, RequestException
from urllib3 import exceptions as below

from oncekey.client.body_reader import Pace
from oncekey.client.delivery import EXTENSION, Delivery
from oncekey.client.errors import RetriesExhausted
from oncekey.client.logical_request import Errand
from oncekey.client.request_identity import HIDDEN, Asked, key_in
from oncekey.client.requests.urllib3_hooks import Within
from oncekey.client.retry_clock import Readings
from oncekey.client.retry_effects import SECOND_US, Trouble
from oncekey.client.settings import Settings
from oncekey.core.errors import InvalidKey

INTENT_HEADER: Final = "Oncekey-Intent"
_SHORTEST_SECONDS: Final = 0.001  # urllib3 refuses 0


class RequestsRetriesExhausted(RetriesExhausted, RequestException):
    """RetriesExhausted, for those who catch the errors of requests."""


# --- errors -------------------------------------------------------------------------------------

# The first that fits, of the error itself or of one inside it. Errors of connecting come before
# anything is sent.
_TROUBLES: Final[tuple[tuple[tuple[type[Exception], ...], Trouble], ...]] = (
    ((ssl.SSLCertVerificationError,), Trouble.CERTIFICATE),
    ((below.ClosedPoolError,), Trouble.OTHER),  # by whoever has closed the session
    ((below.NewConnectionError,), Trouble.CONNECT),
    ((below.ConnectTimeoutError,), Trouble.CONNECT_TIMEOUT),
    ((below.EmptyPoolError,), Trouble.POOL_TIMEOUT),
    ((ProxyError,), Trouble.OTHER),  # it could be reached, and refuses
    ((ReadTimeout, below.ReadTimeoutError), Trouble.TIMEOUT),
    ((NoConnection, below.SSLError), Trouble.NETWORK),
    ((below.ProtocolError,), Trouble.CLOSED),
)


def trouble_of(error: Exception) -> Trouble:
    """What an error of an adapter means."""
    inside = tuple(_inside(error))
    for kinds, trouble in _TROUBLES:
        if any(isinstance(one, kinds) for one in inside):
            return trouble
    return Trouble.OTHER


def _inside(error: BaseException) -> Iterator[BaseException]:
    """The error and those it was made of. Not its context: that may be an error of long ago, which
    the caller is just dealing with."""
    yield error
    for inner in (getattr(error, "reason", None), *error.args):
        if isinstance(inner, BaseException):
            yield from _inside(inner)


# --- one request --------------------------------------------------------------------------------


class RequestsErrand(Errand[requests.Response]):
    """One request of a session, its body at hand."""

    exhausted = RequestsRetriesExhausted
    tells_cause = False  # urllib3 puts the whole URL into its errors

    def __init__(
        self,
        settings: Settings,
        clock: Readings,
        request: requests.PreparedRequest,
        body: bytes,
    ) -> None:
        content_type = _text(request.headers.get("Content-Type")) or ""
        method, url = (request.method or "").upper(), request.url or ""
        asked = Asked(method, url, content_type, body, settings.account)
        hidden = getattr(request, HIDDEN, None)
        if hidden is not None:
            request.headers.setdefault(settings.header, hidden)
        field = _text(request.headers.get(settings.header))
        header = key_in([] if field is None else [field], settings.header)
        intent = request.headers.get(INTENT_HEADER)
        given = None if intent is None else {"intent": _intent(intent)}
        super().__init__(settings, clock, asked, header, given)
        self._request = request
        self._intent = intent

    def hide_intent(self) -> None:
        """It is between the caller and us. Not before a try is made: until then the request has
        no key, and must be found by its intent if it is sent again."""
        self._request.headers.pop(INTENT_HEADER, None)

    def timeout(self, given: Any, until: int | None) -> Any:
        """The caller's timeouts, and all of it within the deadline."""
        if until is None:
            return given
        left = max(_SHORTEST_SECONDS, (until - self.clock.now()) / SECOND_US)
        if isinstance(given, urllib3.Timeout):
            own = given.total
            total = min(own, left) if isinstance(own, (int, float)) else left
            return Within(total=total, connect=given._connect, read=given._read)
        connect, read = given if isinstance(given, tuple) else (given, given)
        return Within(total=left, connect=connect, read=read)

    def pace(self, until: int | None) -> Pace:
        return Pace(self.clock, until, ReadTimeout)

    def _set_header(self, value: str) -> None:
        self._request.headers[self.settings.header] = value

    def _hide_key(self) -> None:
        setattr(self._request, HIDDEN, self._request.headers.pop(self.settings.header, None))

    def _take_back(self) -> None:
        self._request.headers.pop(self.settings.header, None)
        if self._intent is not None:
            self._request.headers[INTENT_HEADER] = self._intent

    def _refused(self, error: Exception) -> bool:
        return isinstance(error, InvalidURL)

    def _sent(self) -> object:
        return self._request

    def _trouble(self, error: Exception) -> Trouble:
        return trouble_of(error)

    def _status(self, response: requests.Response) -> int:
        return response.status_code

    def _headers(self, response: requests.Response) -> Mapping[str, Any]:
        return response.headers

    def _delivered(self, response: requests.Response, delivery: Delivery) -> requests.Response:
        setattr(response, EXTENSION, delivery)
        # What is pickled of it, in this one: some caches keep responses that way.
        setattr(response, "__attrs__", [*response.__attrs__, EXTENSION])  # noqa: B010
        return response

    def _readable(self, response: requests.Response) -> requests.Response:
        try:
            _ = response.content
        except RequestException:
            pass  # encoded in a way that cannot be undone; its head still tells
        return response


def read_timeout_of(given: Any) -> float | None:
    """The caller's own timeout for reading."""
    if isinstance(given, urllib3.Timeout):
        begun = given.clone()
        begun.start_connect()
        return begun.read_timeout
    read: float | None = given[1] if isinstance(given, tuple) else given
    return read


def _intent(value: str | bytes) -> str:
    """The name as the caller means it: it is never sent, so it is not bound to latin-1."""
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
