"""One guarded request, run in its own thread: what WSGI, Flask and Django do in the same way.

Owns the order of things: who asks, which key, then the body, then the run. The adapters bring the
request as data, a function that makes the response, and send what comes back. Knows no framework.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.once import Once, Operations
from oncekey.http.exchange import (
    OPERATION_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    STORE_DOWN_HEADERS,
    Exchange,
    RequestKey,
    RunArguments,
    checked_principal,
)
from oncekey.http.message import Headers, Request, Response
from oncekey.http.outcomes import NotStored, outcome_to_store
from oncekey.http.problem import Render
from oncekey.http.rules import Rule, Rules
from oncekey.http.unguarded_keys import UnguardedKeys

_log = logging.getLogger("oncekey")


class AppResponse(Protocol):
    """A response in an adapter's own form. `unhandled`: no handler has made it."""

    unhandled: bool

    def response(self, most: int, /) -> Response:
        """As data; without its body where that is longer than `most`."""

    def close(self) -> None:
        """It will not be sent."""


A = TypeVar("A", bound=AppResponse)
CallApp = Callable[[Attempt | None], A]


class FreshResponse(Generic[A]):
    """The app's own response, to be sent with `more` headers."""

    def __init__(self, answer: A, more: Headers, *, stored: bool) -> None:
        self.answer = answer
        self.more = more
        self.stored = stored


class SyncGuard:
    """The rules of one app and its engine."""

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
        self._unprotected = [0]  # shared by those that `under` makes

    @property
    def unprotected(self) -> int:
        """Runs without a key's protection because the store was down."""
        return self._unprotected[0]

    def count_unprotected(self) -> None:
        self._unprotected[0] += 1

    def under(self, prefix: str) -> Self:
        """The same for an app that is mounted under a prefix, see Exchange."""
        exchange = self.exchange.under(prefix)
        if exchange is self.exchange:
            return self
        made = copy.copy(self)
        made.exchange = exchange
        return made

    def passes(self, rule: Rule, headers: Headers) -> bool:
        """Whether a request may do without a key, and has none."""
        return not rule.required and not self.exchange.has_key(headers)

    def admit(
        self, rule: Rule, headers: Headers, caller: Callable[[], object]
    ) -> tuple[RequestKey, str] | Response:
        """The key and whose it is; or the refusal of a request that has none (I15)."""
        who = checked_principal(caller())
        if not who:
            return self.exchange.unknown_caller()
        keyed = self.exchange.key_of(rule, headers)
        if isinstance(keyed, Response):
            return keyed
        assert keyed is not None  # else it passes
        return keyed, who

    def run(
        self,
        keyed: RequestKey,
        who: str,
        request: Request,
        make: CallApp[A],
        operations: Operations | None = None,
    ) -> FreshResponse[A] | Response:
        """Run `make(attempt)` under its key; what to send, now that it may be sent (I13).

        `operations` are those of a transaction where there is one. Raises what `make` raises.
        """
        asking = self.exchange.run_arguments(keyed, who, request)
        if isinstance(asking, Response):
            return asking
        run = _SyncRequest(self, keyed.rule, make, operations or self.once)
        try:
            return run.under(asking)
        except BaseException:
            run.drop()
            raise


class _SyncRequest(Generic[A]):
    """One call of the engine."""

    def __init__(
        self, guard: SyncGuard, rule: Rule, make: CallApp[A], operations: Operations
    ) -> None:
        self._guard = guard
        self._exchange = guard.exchange
        self._rule = rule
        self._make = make
        self._operations = operations
        self._began = False
        self._answer: A | None = None
        self._app_error: BaseException | None = None

    def under(self, asking: RunArguments) -> FreshResponse[A] | Response:
        try:
            result = self._operations.run(
                asking.operation, asking.key, self._body, **asking.options
            )
        except NotStored:
            assert self._answer is not None
            return FreshResponse(self._answer, (), stored=False)
        except OncekeyError as error:
            if error is self._app_error:
                raise  # the handler's own, from an engine of its own
            return self._failed(error)
        if result.replayed or self._answer is None:
            self.drop()  # where another attempt has overtaken ours, its answer counts
            return self._exchange.replay(result.value, result.expires_in)
        marks = self._exchange.added_headers(result.expires_in, replayed=False)
        return FreshResponse(self._answer, marks, stored=True)

    def _body(self, attempt: Attempt) -> Response:
        self._began = True
        began = time.monotonic()
        try:
            answer = self._answer = self._make(attempt)
        except BaseException as error:
            self._app_error = error
            raise
        self._exchange.latency.record(self._rule, time.monotonic() - began)
        if answer.unhandled:
            raise NotStored
        return outcome_to_store(
            answer.response(self._rule.max_response), self._rule, self._operations.policy
        )

    def _failed(self, error: OncekeyError) -> FreshResponse[A] | Response:
        is_down = isinstance(error, StoreUnavailable) and not error.final and not self._began
        if is_down and self._rule.store_down == "run":
            self._guard.count_unprotected()
            _log.warning("the store is down, a request runs without protection: %s", error)
            return FreshResponse(self._make(None), STORE_DOWN_HEADERS, stored=False)
        self.drop()
        return self._exchange.error_response(error, self._rule)

    def drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()
