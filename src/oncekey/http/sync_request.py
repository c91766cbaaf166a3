"""One guarded request of a sync app: the common part of the adapters for WSGI, Flask and Django.

Owns the order in which a request is processed: 1. its caller, 2. its key, 3. its body, 4. its run
under the key. The adapters bring the request as data and a function that calls the app, and send
the response that comes back. Knows no framework.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.once import Once, Operations
from oncekey.http.exchange import (
    OPERATION_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    STORE_DOWN_HEADERS,
    Exchange,
    RunArguments,
    checked_principal,
    unprotected_event,
)
from oncekey.http.message import Headers, Request, RequestHeaders, Response
from oncekey.http.outcomes import NotStored, outcome_to_store
from oncekey.http.problem import Render
from oncekey.http.rules import Rule, Rules
from oncekey.http.unguarded_keys import UnguardedKeys


class RequestKey(NamedTuple):
    """The key of a guarded request, and the rule that guards it."""

    rule: Rule
    key: str


class AppResponse(Protocol):
    """A response in an adapter's own form. `unhandled` is True if no handler made it."""

    unhandled: bool

    def response(self, most: int, /) -> Response:
        """The response as data; without its body if that is longer than `most`."""

    def close(self) -> None:
        """Free it, because it will not be sent."""


A = TypeVar("A", bound=AppResponse)
CallApp = Callable[[Attempt | None], A]


class FreshResponse(Generic[A]):
    """The app's own response of this run, not a replay; to be sent with `more_headers`."""

    def __init__(self, app_response: A, more_headers: Headers, *, stored: bool) -> None:
        self.app_response = app_response
        self.more_headers = more_headers
        self.stored = stored


class SyncGuard:
    """Guards the requests of one app: its rules, and its engine."""

    def __init__(
        self,
        once: Once,
        *,
        rules: Iterable[Rule] = (),
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = None,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        unguarded: str = "warn",
    ) -> None:
        if not isinstance(once, Once):
            raise ConfigurationError(f"once must be a Once, not a {type(once).__name__}")
        self.once = once
        self.exchange = Exchange(
            Rules(rules),
            operation=operation,
            policy_url=policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
        )
        self.unguarded = UnguardedKeys(self.exchange, once.notify, unguarded)
        self._unprotected = [0]  # a list, shared with the copies that `under` makes

    @property
    def unprotected(self) -> int:
        """How many requests ran unprotected because the store was down."""
        return self._unprotected[0]

    def count_unprotected(self) -> None:
        self._unprotected[0] += 1

    def under(self, prefix: str) -> Self:
        """The guard of an app that is mounted under a prefix, see Exchange.under."""
        exchange = self.exchange.under(prefix)
        if exchange is self.exchange:
            return self
        mounted = copy.copy(self)
        mounted.exchange = exchange
        return mounted

    def is_exempt(self, rule: Rule, headers: RequestHeaders) -> bool:
        """Whether a request has no key and needs none."""
        return not rule.required and not self.exchange.has_key(headers)

    def admit(
        self, rule: Rule, headers: RequestHeaders, caller: Callable[[], object]
    ) -> tuple[RequestKey, str] | Response:
        """Return the key of a request and its caller, or a refusal (I15)."""
        principal = checked_principal(caller())
        if not principal:
            return self.exchange.unknown_caller()
        key = self.exchange.key_of(rule, headers)
        if isinstance(key, Response):
            return key
        assert key is not None  # otherwise it is exempt
        return RequestKey(rule, key), principal

    def run(
        self,
        key: RequestKey,
        caller: str,
        request: Request,
        call_app: CallApp[A],
        operations: Operations | None = None,
    ) -> FreshResponse[A] | Response:
        """Run `call_app(attempt)` under the key, and return the response to send once the outcome
        is durable (I13). Raises what `call_app` raises.

        `operations` runs it in a transaction; by default the engine does.
        """
        arguments = self.exchange.run_arguments(key.rule, key.key, caller, request)
        if isinstance(arguments, Response):
            return arguments
        run = _SyncRequest(self, key.rule, call_app, operations or self.once)
        try:
            return run.respond(arguments)
        except BaseException:
            run.close_response()
            raise


class _SyncRequest(Generic[A]):
    """One request, from its claim to the response that is to be sent."""

    def __init__(
        self, guard: SyncGuard, rule: Rule, call_app: CallApp[A], operations: Operations
    ) -> None:
        self._guard = guard
        self._exchange = guard.exchange
        self._rule = rule
        self._call_app = call_app
        self._operations = operations
        self._has_run = False
        self._app_response: A | None = None
        self._app_error: BaseException | None = None

    def respond(self, arguments: RunArguments) -> FreshResponse[A] | Response:
        try:
            result = self._operations.run(body=self._body, **arguments)
        except NotStored:
            assert self._app_response is not None
            return FreshResponse(self._app_response, (), stored=False)
        except OncekeyError as error:
            if error is self._app_error:
                raise  # raised by the handler itself, which may use another engine
            return self._failed(error)
        if result.replayed or self._app_response is None:
            self.close_response()  # a takeover has happened, and its response counts
            return self._exchange.replay(result.value, result.expires_in)
        more_headers = self._exchange.fresh_headers(result.expires_in)
        return FreshResponse(self._app_response, more_headers, stored=True)

    def _body(self, attempt: Attempt) -> Response:
        self._has_run = True
        started_at = time.monotonic()
        try:
            app_response = self._app_response = self._call_app(attempt)
        except BaseException as error:
            self._app_error = error
            raise
        self._exchange.latency.record(self._rule, time.monotonic() - started_at)
        if app_response.unhandled:
            raise NotStored
        return outcome_to_store(
            app_response.response(self._rule.max_response), self._rule, self._operations.policy
        )

    def _failed(self, error: OncekeyError) -> FreshResponse[A] | Response:
        is_down = isinstance(error, StoreUnavailable) and not error.final and not self._has_run
        if is_down and self._rule.store_down == "run":
            self._guard.count_unprotected()
            self._guard.once.notify(unprotected_event(error))
            return FreshResponse(self._call_app(None), STORE_DOWN_HEADERS, stored=False)
        self.close_response()
        return self._exchange.error_response(error, self._rule)

    def close_response(self) -> None:
        """Free the app's response, because another one is sent."""
        app_response, self._app_response = self._app_response, None
        if app_response is not None:
            app_response.close()
