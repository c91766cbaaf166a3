"""`IdempotencyWSGI`: any WSGI app, guarded.

    app = IdempotencyWSGI(app, Once(url), caller=verified_account_id)

Requests that no rule guards reach the app untouched, their streams included. A guarded one is read,
claimed and run with an environ of its own; all of its response is taken in, and leaves when its
outcome is durable (I13). Put authentication outside of it or into `caller`, compression and CORS
outside.

Owns the WSGI side only; the rules of an exchange are in exchange.py, the order of a run in
sync_request.py.
"""

from __future__ import annotations

import atexit
import io
import weakref
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.once import Once
from oncekey.http.body_canonical import UnreadableBody
from oncekey.http.exchange import (
    ATTEMPT,
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    RequestKey,
    check_caller,
)
from oncekey.http.message import Headers, Request, Response
from oncekey.http.outcomes import IncompleteResponse
from oncekey.http.policy_page import is_policy_page, wsgi_app_or_page
from oncekey.http.problem import Render
from oncekey.http.route_table import layers_of
from oncekey.http.rules import Rule
from oncekey.http.sync_request import FreshResponse, SyncGuard
from oncekey.http.sync_response_buffer import SyncResponseBuffer
from oncekey.http.unguarded_keys import KEY_GUARDED, UNGUARDED_HEADERS, mark_key_guarded
from oncekey.http.unhandled_requests import UNSTORED, is_unstored, leave_unstored, watch_frameworks

__all__ = ["IdempotencyWSGI", "attempt_of", "leave_unstored"]

Environ = dict[str, Any]
Lines = list[tuple[str, str]]
StartResponse = Callable[..., Any]
App = Callable[[Any, Any], Iterable[bytes]]
Caller = Callable[[Environ], str | None]

_LENGTH_DIGITS: Final = 18  # of a length; one with more is too large in any case
_CHUNK: Final = 64 * 1024
CUT_SHORT: Final = "The request ended before all of its body was here."
_BARE: Final = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}


def attempt_of(environ: Environ) -> Attempt | None:
    """The attempt a handler runs in: for steps, child keys and the fence. None where no key
    guards it."""
    found: Attempt | None = environ.get(ATTEMPT)
    return found


class IdempotencyWSGI:
    """Guards the requests that `rules` name; by default every POST and PATCH.

    caller      a function of the environ that gives the verified principal, or None to refuse
    rules       see Rule; the first that fits counts. Their paths are those of PATH_INFO
    operation   what its keys are for; two apps on one store want two names
    policy_url  where clients find the published policy: a path of the app, where a built-in page
                is served unless the app has one of its own, or a whole URL; None for none
    challenge   the WWW-Authenticate of a refused caller; "" for none
    replay_header   the header that marks a replay
    render_refusal  a function that gives a Refusal the shape of the app's own errors
    close       whether the engine is closed when the process ends
    unguarded   what to do about a key on a request that no rule guards: "warn" says so in the
                response and in the log, "refuse" answers 400
    """

    def __init__(
        self,
        app: App,
        once: Once,
        *,
        caller: Caller,
        rules: Iterable[Rule] = (),
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = POLICY_URL_DEFAULT,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        close: bool = True,
        unguarded: str = "warn",
    ) -> None:
        check_caller(caller)
        self.guard = SyncGuard(
            once,
            rules=rules,
            operation=operation,
            policy_url=policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
            unguarded=unguarded,
        )
        watch_frameworks(layers_of(app))
        self.app = app
        self.once = once
        self.exchange = self.guard.exchange
        self.caller = caller
        self._find = self.exchange.rules.find
        if close:
            close_at_exit(once)

    @property
    def unprotected(self) -> int:
        """Runs without a key's protection because the store was down."""
        return self.guard.unprotected

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rule = self._find(environ["REQUEST_METHOD"], path_of(environ))
        if rule is None and is_policy_page(
            environ["REQUEST_METHOD"], path_of(environ), self.exchange.page_path
        ):
            return wsgi_app_or_page(self.app, self, environ, start_response)
        if rule is None and has_unguarded_key(self.guard, environ):
            return self._warn_or_refuse(environ, start_response)
        if rule is None or environ.get(ATTEMPT) is not None:  # or it is guarded already
            return self.app(environ, start_response)
        guard = self.guard.under(environ.get("SCRIPT_NAME", ""))
        headers = headers_of(environ)
        if guard.passes(rule, headers):
            return self.app(environ, start_response)
        mark_key_guarded(environ)
        admitted = guard.admit(rule, headers, lambda: self.caller(environ))
        answer: Response | FreshResponse[WSGIResponse]
        try:
            # A refused one is read too, for the connection's next one comes behind it.
            body = read_body(environ, rule.max_request, keep=not isinstance(admitted, Response))
        except UnreadableBody as error:
            admitted, body = guard.exchange.unreadable(str(error)), None
        if isinstance(admitted, Response):
            answer = admitted
        elif body is None:
            answer = guard.exchange.too_large(rule)
        else:
            answer = self._guarded(guard, *admitted, environ, headers, body)
        if isinstance(answer, Response):
            start_response(status_line(answer.status), text_headers(answer.headers))
            return [answer.body]
        return answer.answer.sent(start_response, answer.more)

    def _warn_or_refuse(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """A request that no rule guards has a key."""
        unguarded, method = self.guard.unguarded, environ["REQUEST_METHOD"]
        if unguarded.refuses and not self.exchange.rules.excludes(method, path_of(environ)):
            unguarded.note(method, path_of(environ))
            read_body(environ, Rule().max_request, keep=False)
            answer = unguarded.refusal(environ.get("SCRIPT_NAME", ""))
            start_response(status_line(answer.status), text_headers(answer.headers))
            return [answer.body]
        if KEY_GUARDED in environ:  # whoever stands outside tells the client
            return self.app(environ, start_response)
        taken: list[bool] = []
        environ[KEY_GUARDED] = taken

        def marked(line: str, lines: Lines, *exc_info: Any) -> Any:
            if not taken:
                unguarded.note(method, path_of(environ))
                lines = [*lines, *text_headers(UNGUARDED_HEADERS)]
            return start_response(line, lines, *exc_info)

        return self.app(environ, marked)

    def _guarded(
        self,
        guard: SyncGuard,
        keyed: RequestKey,
        who: str,
        environ: Environ,
        headers: Headers,
        body: bytes,
    ) -> Response | FreshResponse[WSGIResponse]:
        if is_cut_short(environ, body):
            return guard.exchange.unreadable(CUT_SHORT)

        def make(attempt: Attempt | None) -> WSGIResponse:
            return WSGIResponse(self.app, app_environ(environ, body, attempt))

        return guard.run(keyed, who, request_of(environ, headers, body), make)


class WSGIResponse(SyncResponseBuffer):
    """What an app answers. It has run to its end once this is made."""

    def __init__(self, app: App, environ: Environ) -> None:
        super().__init__()
        self._line = ""
        self._lines: Lines = []
        try:
            self.fill(app(environ, self._start))
            if not self._line:
                raise IncompleteResponse("the app ended before its response was complete")
        except BaseException:
            self.close()
            raise
        self.status = int(self._line[:3])
        self.headers = tuple(
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._lines
        )
        self.unhandled = is_unstored(environ.get(UNSTORED, ()), self.status)

    def _start(self, line: str, lines: Lines, exc_info: Any = None) -> Callable[[bytes], None]:
        """The app's `start_response`."""
        if exc_info is not None:
            if self.size:
                # To a server this response would be on its way: half of it, and then an error
                # page, is nothing to be kept.
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._line:
            raise RuntimeError("the app began its response twice")
        self._line, self._lines = line, list(lines)
        return self.add

    def add(self, chunk: bytes) -> None:
        if not self._line:
            raise RuntimeError("the app sent a body before it began its response")
        super().add(chunk)

    def sent(self, start_response: StartResponse, more: Headers) -> Iterable[bytes]:
        """Begin the response; what to iterate for the rest of it."""
        start_response(self._line, [*self._lines, *text_headers(more)])
        return self


# --- environs -----------------------------------------------------------------------------------


def path_of(environ: Environ) -> str:
    """The path within the app, as rules have it."""
    path: str = environ.get("PATH_INFO", "")
    return path.encode("latin-1").decode("utf-8", "replace") or "/"


def has_unguarded_key(guard: SyncGuard, environ: Environ) -> bool:
    """Whether a request has a key, if nothing guards it."""
    is_ours = guard.unguarded.is_reported(environ["REQUEST_METHOD"], environ)
    return is_ours and "HTTP_IDEMPOTENCY_KEY" in environ


def headers_of(environ: Environ) -> Headers:
    """The request's headers. A server has joined the lines of one name with commas, and has taken
    `Idempotency_Key` for the same name: two keys are one malformed key here."""
    made = []
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            plain = name[5:].replace("_", "-").lower().encode("latin-1")
            made.append((plain, value.encode("latin-1")))
        elif name in _BARE and value:
            made.append((_BARE[name], value.encode("latin-1")))
    return tuple(made)


def request_of(environ: Environ, headers: Headers, body: bytes) -> Request:
    # Servers do not agree on where the path is as it came, so it is encoded again: what is the
    # same to the app is the same here.
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return Request(
        environ["REQUEST_METHOD"],
        quote(path.encode("latin-1")).encode("ascii"),
        environ.get("QUERY_STRING", "").encode("latin-1"),
        headers,
        body,
    )


def _length(environ: Environ) -> int | None:
    line = environ.get("CONTENT_LENGTH") or ""
    return int(line[:_LENGTH_DIGITS]) if line.isascii() and line.isdigit() else None


def read_body(environ: Environ, limit: int, *, keep: bool = True) -> bytes | None:
    """The whole body, None where it is longer than `limit`; nothing is read of what is too long
    by its own word. Without a length it ends where the server says it does, or is empty. Unless
    `keep`, it is read past only. Raises UnreadableBody where the client went away meanwhile."""
    length = _length(environ)
    if length is None:
        length = limit + 1 if environ.get("wsgi.input_terminated") else 0
    elif length > limit:
        return None
    source = environ["wsgi.input"]
    chunks: list[bytes] = []
    left = length
    while left > 0 and (chunk := _read(source, min(left, _CHUNK))):
        left -= len(chunk)
        if keep:
            chunks.append(chunk)
    return b"".join(chunks) if length - left <= limit else None


def _read(source: Any, size: int) -> bytes:
    try:
        part: bytes = source.read(size)
    except OSError as error:  # a reset, a timeout, a broken chunk
        raise UnreadableBody(CUT_SHORT) from error
    return part


def is_cut_short(environ: Environ, body: bytes) -> bool:
    """Whether the client went away before all of it was here."""
    length = _length(environ)
    return length is not None and len(body) < length


def app_environ(environ: Environ, body: bytes, attempt: Attempt | None) -> Environ:
    """The same request with its body in memory."""
    made = {**environ, ATTEMPT: attempt, UNSTORED: []}
    made.pop("HTTP_TRANSFER_ENCODING", None)
    put_body_back(made, body)
    return made


def put_body_back(environ: Environ, body: bytes) -> None:
    """Put a body that was read back, in memory."""
    environ["wsgi.input"] = io.BytesIO(body)
    environ["wsgi.input_terminated"] = True
    environ["CONTENT_LENGTH"] = str(len(body))


# --- responses ----------------------------------------------------------------------------------


def status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # one that has no name
        return f"{status} Status"


def text_headers(headers: Headers) -> Lines:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def close_at_exit(once: Once) -> None:
    """WSGI has no end that an app is told of but the process's own."""
    known = weakref.ref(once)

    def close() -> None:
        if (engine := known()) is not None:
            engine.close()

    atexit.register(close)
