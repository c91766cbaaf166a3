"""Guards the requests of a sync app: the common part of the adapters for WSGI, Flask and Django.

Owns the order in which a request is processed: 1. its caller, 2. its key, 3. its body, 4. its run
under the key. The adapters bring the request as data and a function that calls the app, and send
the response that comes back. That response is held back until its outcome is durable: a small one
in memory, a larger one in a temporary file. One that grows past `HOLD_MAX_BYTES` is not read to its
end before it is sent: what was read is held, and the rest is read while it is sent. Knows no
framework.
"""

from __future__ import annotations

import atexit
import copy
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, Generic, NamedTuple, Self, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.once import Once, Operations
from oncekey.http.exchange import (
    STORE_DOWN_HEADERS,
    Exchange,
    RunArguments,
    checked_principal,
    unprotected_event,
)
from oncekey.http.key_header import HEADER
from oncekey.http.message import (
    CHUNK_BYTES,
    HOLD_MAX_BYTES,
    SPILL_BYTES,
    Headers,
    Request,
    RequestHeaders,
    Response,
)
from oncekey.http.rules import Rule
from oncekey.http.stored_responses import NotStored, outcome_to_store
from oncekey.http.unguarded_keys import UnguardedKeys
from oncekey.http.wsgi.messages import Environ

A = TypeVar("A", bound="ResponseBuffer")
CallApp = Callable[[Attempt | None], A]


class RequestGuard:
    """Guards the requests of one app: its rules, and its engine."""

    def __init__(self, once: Once, exchange: Exchange, unguarded: str = "warn") -> None:
        if not isinstance(once, Once):
            raise ConfigurationError(f"once must be a Once, not a {type(once).__name__}")
        self.once = once
        self.exchange = exchange
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

    def has_unguarded_key(self, environ: Environ) -> bool:
        """Whether a request that nothing guards has a key, and is to be reported."""
        is_reported = self.unguarded.is_reported(environ["REQUEST_METHOD"], environ)
        return is_reported and "HTTP_IDEMPOTENCY_KEY" in environ

    def is_exempt(self, rule: Rule, headers: RequestHeaders) -> bool:
        """Whether a request has no key and needs none."""
        return not rule.required and HEADER not in headers

    def admit(
        self, rule: Rule, headers: RequestHeaders, caller: Callable[[], object]
    ) -> tuple[str, str] | Response:
        """Return the key of a request and its caller, or a refusal (I15)."""
        principal = checked_principal(caller())
        if not principal:
            return self.exchange.unknown_caller()
        key = self.exchange.key_of(rule, headers)
        if isinstance(key, Response):
            return key
        assert key is not None  # otherwise it is exempt
        return key, principal

    def run(
        self,
        rule: Rule,
        key: str,
        caller: str,
        request: Request,
        call_app: CallApp[A],
        operations: Operations | None = None,
    ) -> FreshResponse[A] | Response:
        """Run `call_app(attempt)` under the key, and return the response to send once the outcome
        is durable (I13). Raises what `call_app` raises.

        `operations` runs it in a transaction; by default the engine does.
        """
        arguments = self.exchange.run_arguments(rule, key, caller, request)
        if isinstance(arguments, Response):
            return arguments
        run = _GuardedRun(self, rule, call_app, operations or self.once)
        try:
            return run.respond(arguments)
        except BaseException:
            run.close_response()
            raise


def close_at_exit(once: Once) -> None:
    """Close the engine with the process; WSGI notifies apps of no other end."""
    reference = weakref.ref(once)

    def close() -> None:
        if (engine := reference()) is not None:
            engine.close()

    atexit.register(close)


class _GuardedRun(Generic[A]):
    """One request, from its claim to the response that is to be sent."""

    def __init__(
        self, guard: RequestGuard, rule: Rule, call_app: CallApp[A], operations: Operations
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
            return FreshResponse(self._app_response, (), is_stored=False)
        except OncekeyError as error:
            if error is self._app_error:
                raise  # raised by the handler itself, which may use another engine
            return self._failed(error)
        if result.replayed or self._app_response is None:
            self.close_response()  # a takeover has happened, and its response counts
            return self._exchange.replay(result.value, result.expires_in)
        more_headers = self._exchange.fresh_headers(result.expires_in)
        return FreshResponse(self._app_response, more_headers, is_stored=True)

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
            return FreshResponse(self._call_app(None), STORE_DOWN_HEADERS, is_stored=False)
        self.close_response()
        return self._exchange.error_response(error, self._rule)

    def close_response(self) -> None:
        """Free the app's response, because another one is sent."""
        app_response, self._app_response = self._app_response, None
        if app_response is not None:
            app_response.close()


# --- responses ------------------------------------------------------------------------------------


class FreshResponse(NamedTuple, Generic[A]):
    """The app's own response of this run, not a replay; to be sent with `more_headers`."""

    app_response: A
    more_headers: Headers
    is_stored: bool


class ResponseBuffer:
    """The response of one run of an app. Iterate it once to send the body.

    `status`, `headers` and `unhandled` are set by the adapter that fills it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.size = 0
        self.unhandled = False  # True if no handler made it, see unhandled_requests.py
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=SPILL_BYTES)  # noqa: SIM115
        self._source: Any = None
        self._rest: Iterator[bytes] | None = None  # the unread part of one too long to be held

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)

    def fill(self, parts: Iterable[bytes], source: object = None) -> None:
        """Read the body to its end and close it; of one too long to be held, read the beginning.
        `source` is what is to be closed, if that is not what has the parts."""
        self._source = parts if source is None else source
        try:
            rest = iter(parts)
            for chunk in rest:
                self.add(chunk)
                if self.size > HOLD_MAX_BYTES:
                    self._rest = rest
                    return
        except BaseException:
            self.close()
            raise
        self._close_source()

    @property
    def is_cut(self) -> bool:
        """Whether it is too long to be held: only its beginning was read."""
        return self._rest is not None

    def response(self, body_max: int) -> Response:
        """The response as data; without its body if that is longer than `body_max` or unread."""
        if self.size > body_max or self.is_cut:
            return Response(self.status, self.headers, b"", omitted=True)
        self._file.seek(0)
        return Response(self.status, self.headers, self._file.read())

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._file.seek(0)
            while chunk := self._file.read(CHUNK_BYTES):
                yield chunk
            if self._rest is not None:
                yield from self._rest
        finally:
            self.close()

    def close(self) -> None:
        """Free the buffer and close the source, because the response was sent or is not needed."""
        self._file.close()
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "close", None)
        if close is not None:
            close()
