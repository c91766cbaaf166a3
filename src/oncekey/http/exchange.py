"""Decides about one request with a key, step by step, in the same way for every adapter.

1. From the headers: the request needs no key, is refused, or has a key.
2. From the body: the request is refused, or these are the arguments of the engine's `run`.
3. From what `run` returned or raised: this response is to be sent.

Pure but for the latencies it has seen; the adapters read, run and send.
"""

from __future__ import annotations

import copy
import re
from functools import lru_cache
from typing import Any, Final, Self
from urllib.parse import quote

from oncekey.core.commands import from_fields
from oncekey.core.derived_keys import require_namespace
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    OncekeyError,
    StoreUnavailable,
)
from oncekey.core.events import Event, EventKind
from oncekey.core.identity import OPERATION_MAX_CHARS, SCOPE_MAX_CHARS
from oncekey.core.origin import NAME_MAX_CHARS, ROUTE_MAX_CHARS, Origin, shown
from oncekey.http import problem as problems
from oncekey.http.key_header import HEADER, RefusedField, read_key
from oncekey.http.message import (
    Headers,
    Request,
    RequestHeaders,
    Response,
    TooLarge,
    UnreadableBody,
)
from oncekey.http.problem import Problem, Render, problem_for, refusal_response
from oncekey.http.request_fingerprint import fingerprint_bytes
from oncekey.http.response_codec import CODEC
from oncekey.http.rules import Rule, Rules

SURFACE: Final = "http"
ATTEMPT: Final = "oncekey.attempt"  # in the scope or environ: the attempt a handler runs in
OPERATION_DEFAULT: Final = "http"
POLICY_URL_DEFAULT: Final = "/idempotency-policy"
REPLAY_HEADER_DEFAULT: Final = "X-Idempotency-Replayed"
RETENTION: Final = b"x-idempotency-retention"
UNPROTECTED: Final = b"x-idempotency-unprotected"
STORE_DOWN_HEADERS: Final[Headers] = ((UNPROTECTED, b"store-down"),)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH_DIGITS: Final = 18
_BODILESS: Final = frozenset({204, 205, 304})
_ORIGINS_REMEMBERED: Final = 1_024
_LATENCY_WEIGHT: Final = 0.2  # of the latest request

# The arguments of the engine's `run`, by name, but for the body.
RunArguments = dict[str, Any]


class Exchange:
    """The rules of one app, and what is decided by them."""

    def __init__(
        self,
        rules: Rules,
        *,
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = None,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
    ) -> None:
        if not 0 < len(operation) <= OPERATION_MAX_CHARS:
            raise ConfigurationError(f"operation={operation!r} is empty or too long")
        if not isinstance(replay_header, str) or not _TOKEN.fullmatch(replay_header):
            raise ConfigurationError(f"replay_header={replay_header!r} is no name of a header")
        if render_refusal is not None and not callable(render_refusal):
            raise ConfigurationError("render_refusal= must be a function of a Refusal")
        self.rules = rules
        self.operation = operation
        self.latency = LatencyAverages()
        self.policy_url = policy_url
        self.replay_header = replay_header
        self._challenge = challenge.encode("latin-1")
        self._replayed = (replay_header.lower().encode("ascii"), b"true")
        self._render = render_refusal

    @property
    def page_path(self) -> str | None:
        """Where the built-in policy page is served, unless the app has one of its own there."""
        url = self.policy_url
        return url if url is not None and url.startswith("/") else None

    def under(self, prefix: str) -> Self:
        """The exchange of an app that is mounted under a prefix: so is its built-in page."""
        if not prefix or self.policy_url != POLICY_URL_DEFAULT:
            return self
        made = copy.copy(self)
        made.policy_url = quote(prefix.rstrip("/")) + POLICY_URL_DEFAULT
        return made

    # --- before the run -----------------------------------------------------------------------

    def key_of(self, rule: Rule, headers: RequestHeaders) -> str | Response | None:
        """The key of a guarded request, or its refusal; None if it needs no key and has none."""
        try:
            key = read_key(headers.get(HEADER, ()), strict=rule.strict)
        except InvalidKey as error:
            # No rule accepts this field as a key, so nothing has run under it.
            is_never_a_key = not isinstance(error, RefusedField)
            invalid = problems.INVALID._replace(detail=str(error), safe_new_key=is_never_a_key)
            return self.problem_response(invalid)
        if key is None:
            return self.problem_response(problems.MISSING) if rule.required else None
        if rule.namespaces is not None:
            try:
                require_namespace(key, rule.namespaces)
            except InvalidKey as error:
                # An earlier version of the rule may have accepted this key and run its request.
                return self.problem_response(problems.INVALID._replace(detail=str(error)))
        return key

    def declared_too_large(self, rule: Rule, headers: RequestHeaders) -> bool:
        """Whether the Content-Length exceeds the limit."""
        lines = headers.get(b"content-length")
        if lines is None or len(lines[0]) < rule.max_request_digits:
            return False
        length = lines[0].lstrip(b"0")
        if len(length) > _LENGTH_DIGITS:
            return True
        return length.isdigit() and int(length) > rule.max_request

    def run_arguments(
        self, rule: Rule, key: str, caller: str, request: Request
    ) -> RunArguments | Response:
        """The arguments for a request; or the refusal of a body that cannot be decoded."""
        try:
            compared = fingerprint_bytes(request, rule)
        except (TooLarge, UnreadableBody) as error:
            return self.refused_body(rule, error)
        return {
            "operation": self.operation,
            "key": key,
            "scope": caller,
            "request": compared,
            "codec": CODEC,
            "origin": origin_of_request(rule, request),
            **rule.options,
        }

    # --- refusals -----------------------------------------------------------------------------

    def problem_response(self, problem: Problem, **more: Any) -> Response:
        return refusal_response(problem, policy_url=self.policy_url, render=self._render, **more)

    def refused_body(self, rule: Rule, error: TooLarge | UnreadableBody) -> Response:
        if isinstance(error, TooLarge):
            return self.too_large(rule, error.limit, error.unit)
        return self.problem_response(problems.UNREADABLE._replace(detail=str(error)))

    def too_large(self, rule: Rule, most: int | None = None, unit: str = "bytes") -> Response:
        detail = f"At most {most or rule.max_request} {unit} are accepted, decompressed too."
        return self.problem_response(problems.TOO_LARGE._replace(detail=detail))

    def too_many_comparisons(self) -> Response:
        """The caller has more requests in the queue for costly comparisons than it may."""
        busy = problems.UNAVAILABLE._replace(detail=problems.TOO_MANY_COMPARISONS)
        return self.problem_response(busy, retry_after=problems.RETRY_AFTER_DOWN_SECONDS)

    def unknown_caller(self) -> Response:
        """The caller is not known, so there is nobody whose keys could be looked at (I15)."""
        challenge = ((b"www-authenticate", self._challenge),) if self._challenge else ()
        return self.problem_response(problems.UNKNOWN_CALLER, headers=challenge)

    def error_response(self, error: OncekeyError, rule: Rule | None = None) -> Response:
        """The response to an error of the engine. Raises the error if it is not the client's to
        see."""
        problem = problem_for(error)
        if problem is None or (isinstance(error, StoreUnavailable) and error.final):
            raise error  # a closed engine never answers a retry, so no 503 asks for one
        retry_after: float | None = None
        if isinstance(error, InFlight):
            average = self.latency.average(rule) if rule is not None else None
            if average is None:
                average = problems.RETRY_AFTER_UNLEARNED_SECONDS
            retry_after = min(average, error.retry_after)
        elif problem.retryable:
            retry_after = problems.RETRY_AFTER_DOWN_SECONDS
        return self.problem_response(problem, retry_after=retry_after)

    # --- after the run ------------------------------------------------------------------------

    def replay(self, response: Response, expires_in: float) -> Response:
        """The response for a retry, from the stored one. Its key expires in so many seconds."""
        status, headers, body, omitted = response
        if omitted:
            return self.problem_response(problems.NOT_REPLAYABLE, original_status=status)
        retention = (RETENTION, b"%d" % expires_in)
        if status in _BODILESS:
            headers = (*headers, self._replayed, retention)
        else:
            length = (b"content-length", b"%d" % len(body))
            headers = (*headers, self._replayed, retention, length)
        return from_fields(Response, (status, headers, body, False))

    def fresh_headers(self, expires_in: float) -> Headers:
        """The headers that an app's own response gets: how many seconds its key is kept."""
        return ((RETENTION, b"%d" % expires_in),)


def check_caller(caller: object) -> None:
    """Raise ConfigurationError if this cannot be a `caller=`."""
    if not callable(caller):
        raise ConfigurationError(
            "caller= must be a function that gives the verified principal of a request: keys "
            "belong to callers, and one's answers must never reach another"
        )


def checked_principal(found: object) -> str:
    """The principal that a `caller=` gave; "" for None, and for a text with nothing but blanks in
    it, which is nobody's name either."""
    if found is not None and not isinstance(found, str):
        raise TypeError(f"caller= must give text or None, not a {type(found).__name__}")
    if found is None or not found.strip():
        return ""
    if not (len(found) <= SCOPE_MAX_CHARS and found.isprintable()):
        raise ValueError(
            f"caller= gave {len(found)} characters; what can be kept are 1 to {SCOPE_MAX_CHARS}, "
            "all printable"
        )
    return found


def unprotected_event(error: OncekeyError) -> Event:
    """The event of a request that runs although the store is down, with this error."""
    return Event(EventKind.UNPROTECTED, error.operation, "", error.tag, surface=SURFACE)


def origin_of_request(rule: Rule, request: Request) -> Origin:
    """The origin of a guarded request: its method and route, which describe its record to
    operators. The route is the template of the framework's own where that is known, else the path
    of the rule, else the path that was requested."""
    template = request.template
    if not template:
        template = rule.path if "*" not in rule.path else ""
    return _origin(request.method, template or request.path, request.name)


@lru_cache(_ORIGINS_REMEMBERED)
def _origin(method: str, path: str | bytes, name: str) -> Origin:
    text = path.decode("ascii", "replace") if isinstance(path, bytes) else path
    return Origin(SURFACE, shown(f"{method} {text}", ROUTE_MAX_CHARS), shown(name, NAME_MAX_CHARS))


class LatencyAverages:
    """How long the requests of each rule take, for the Retry-After of their duplicates: exponential
    moving averages in memory. Nothing depends on their being exact."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by id(rule): rules are few and live for ever

    def record(self, rule: Rule, seconds: float) -> None:
        old = self._seconds.get(id(rule))
        self._seconds[id(rule)] = (
            seconds if old is None else old + _LATENCY_WEIGHT * (seconds - old)
        )

    def average(self, rule: Rule) -> float | None:
        """The average in seconds; None before the first request."""
        return self._seconds.get(id(rule))
