"""One logical request: its key, what its tries came to, and what its caller gets.

A logical request is sent once or several times under one key. This module has what is the same for
every HTTP library, sync or async; a subclass per library adds how its errors and responses are
dealt with. request_drivers.py sends it, and keeps its entry in the journal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from oncekey.client import retry_rules
from oncekey.client.client_settings import Settings
from oncekey.client.delivery import Delivery
from oncekey.client.errors import RetriesExhausted, exhausted_message
from oncekey.client.key_source import KeyChoice
from oncekey.client.request_identity import (
    REMOVED_KEY,
    RequestIdentity,
    key_header_value,
    tag_of,
)
from oncekey.client.retry_clock import ClockReader, read_clock
from oncekey.client.retry_effects import (
    SECOND_US,
    NoResponse,
    OutcomeKind,
    RequestOutcome,
    ResponseHead,
    ResponseReceived,
    TransportFailure,
)
from oncekey.client.retry_flow import Flow, send_with_retries


class Response(Protocol):
    """What the responses of httpx and requests have in common here."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=Response)


class LogicalRequest(ABC, Generic[R]):
    """A request of a library, under way; R is the library's response."""

    exhausted_error: ClassVar[type[RetriesExhausted]]
    # An error of this type means that the library refused to send the request at all.
    unsent_error: ClassVar[type[Exception]]
    # False if the library's errors have the whole URL in their text, which must not be logged.
    chains_cause: ClassVar[bool] = True

    def __init__(
        self,
        settings: Settings,
        clock: ClockReader,
        request: Any,
        identity: RequestIdentity,
        choice: KeyChoice,
    ) -> None:
        """`request` is the library's; its key has been chosen, but is not on it yet."""
        self.settings = settings
        self.clock = clock
        self.request = request
        self.identity = identity
        self.key = choice.key
        self.entry = choice.entry
        # What the last try came to: a response with its head, or an error.
        self.response: R | None = None
        self.error: Exception | None = None
        self._head: ResponseHead | None = None
        self._choice = choice

    def start(self) -> Flow:
        """Put the key on the request, and begin to send it. An entry of the journal has been begun
        before, since it may have brought the key of an earlier request."""
        used = self._choice.used
        if self.entry is not None:
            self.key = self.entry.key
            used = used or self.entry.reused
        # A key that the library sends on, after a response that did nothing, is not a used one.
        used = used and not self.settings.unused_keys.pop(self.key, False)
        if not self._choice.in_header:
            # It is set on the library's own request, so that a redirect or an authentication that
            # sends this request on keeps the key.
            value = key_header_value(self.key, quoted=self.settings.quoted)
            self.request.headers[self.settings.header] = value
        return send_with_retries(self.settings.limits, self.clock.now(), used=used)

    # --- results of tries -----------------------------------------------------------------------

    def received(
        self, response: R, head: ResponseHead, body: bytes | None, error: Exception | None = None
    ) -> ResponseReceived:
        """The result of a try that got a response. `body` is None if it was too large to hold;
        `error` is what ended it before its end."""
        # If the head alone says what to do, a broken body takes nothing from it.
        self.response = response if error is None or head.retried else None
        self.error = error
        self._head = head
        return ResponseReceived(
            head,
            read_clock(self.clock),
            None if error is None else self.classify(error),
            retry_rules.warns_of_new_key(response.headers, body),
        )

    def failed(self, error: Exception) -> NoResponse:
        """The result of a try that got no response."""
        self.response = self._head = None
        self.error = error
        unsent = isinstance(error, self.unsent_error)
        return NoResponse(self.classify(error), read_clock(self.clock), unsent)

    # --- the end ----------------------------------------------------------------------------------

    def conclude(self, outcome: RequestOutcome) -> R:
        """Return the response for the caller, or raise the error that says what to do."""
        if outcome.kind is OutcomeKind.EXHAUSTED:
            cause = self.error if self.response is None and self.chains_cause else None
            raise self._exhausted(outcome) from cause
        if outcome.kind is OutcomeKind.ERROR:
            assert self.error is not None
            raise self.error
        assert self.response is not None
        assert self._head is not None
        status = self._head.status
        if status in retry_rules.SENT_ON and not outcome.maybe_carried_out:
            self.settings.remember_unused(self.key)
        if retry_rules.redirects_to_get(self.identity.method, status):
            # The library makes the GET from this request. The key is kept aside, because the same
            # request object may be sent again.
            value = self.request.headers.pop(self.settings.header, None)
            setattr(self.request, REMOVED_KEY, value)
        delivery = Delivery(
            key=self.key,
            attempts=outcome.attempts,
            replayed=self._head.replayed,
            conclusive=outcome.conclusive,
            waited=outcome.waited / SECOND_US,
            elapsed=outcome.elapsed / SECOND_US,
        )
        self.attach(self.response, delivery)
        return self.response

    def _exhausted(self, outcome: RequestOutcome) -> RetriesExhausted:
        in_journal = self.entry is not None and self.entry.held
        return self.exhausted_error(
            exhausted_message(outcome, in_journal=in_journal),
            key=self.key,
            attempts=outcome.attempts,
            elapsed=outcome.elapsed / SECOND_US,
            last=self.error if self.response is None else self.response.status_code,
            request=self.request,
            response=None if self.response is None else self.readable(self.response),
            safe_new_key=not outcome.maybe_carried_out,
            operation=f"{self.identity.method} {self.identity.display_url}",
            tag=tag_of(self.key),
        )

    def remove_key(self) -> None:
        """Undo `start`: the library's request is as the caller made it, without a key. If it is
        sent again, it gets a new entry in the journal."""
        self.request.headers.pop(self.settings.header, None)

    # --- what differs by library -----------------------------------------------------------------

    @abstractmethod
    def classify(self, error: Exception) -> TransportFailure:
        """The kind of failure that an error of the library means."""

    @abstractmethod
    def attach(self, response: R, delivery: Delivery) -> None:
        """Hang the delivery on the response, where `delivery_of` finds it."""

    @abstractmethod
    def readable(self, response: R) -> R:
        """The response as an error carries it: read, so that it holds no connection."""
