"""Writes the policy that a service publishes about its keys, as the standard's draft demands.

It is made from the rules that an app really has, so that the two cannot differ: as data, Markdown,
or an HTML page, to whose anchors the `type` of a refusal points.

That page is served where the Link header of a refusal leads by default. It is made from the app's
rules at each request. An app's own page has precedence: the app is called first, and only its 404
is replaced. Knows ASGI and WSGI, but no engine; policy_discovery.py finds an app's rules.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from oncekey.core.duration import human
from oncekey.core.identity import KEY_MAX_CHARS
from oncekey.core.policy import Policy
from oncekey.http.exchange import REPLAY_HEADER_DEFAULT
from oncekey.http.inspection.policy_discovery import find_policy
from oncekey.http.key_header import HEADER_NAME
from oncekey.http.message import App, Headers, Response, text_headers
from oncekey.http.problem import ALL_PROBLEMS
from oncekey.http.rules import Rule
from oncekey.http.stored_responses import NEVER_STORED_STATUSES

_PAGE_METHODS: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final[Headers] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"max-age=300"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)
_NOT_FOUND: Final = 404


@dataclass(frozen=True)
class PolicyEntry:
    """What a client has to know about one route, or about all paths that a rule matches."""

    methods: list[str]
    path: str
    required: bool
    key_format: str
    namespaces: list[str]
    kept_for: str
    kept_for_seconds: int
    waits: str
    request_bytes_max: int
    stored_bytes_max: int
    compared: str
    failures: str


def policy_entries(
    guarded: Iterable[tuple[Sequence[str], str, Rule]], policy: Policy
) -> list[PolicyEntry]:
    """One entry for each (methods, path, rule), under the engine's policy."""
    return [_entry(rule, path, methods, policy) for methods, path, rule in guarded]


def _entry(rule: Rule, path: str, methods: Sequence[str], engine: Policy) -> PolicyEntry:
    policy = engine.with_options(**{k: v for k, v in rule.options.items() if k != "max_bytes"})
    times = policy.times
    return PolicyEntry(
        methods=sorted(methods),
        path=path,
        required=rule.required,
        key_format=_key_format(rule),
        namespaces=list(rule.namespaces or ()),
        kept_for=human(times.keep),
        kept_for_seconds=times.keep // 1_000_000,
        waits=human(times.wait) if times.wait else "",
        request_bytes_max=rule.max_request,
        stored_bytes_max=rule.max_response,
        compared=_compared(rule),
        failures=(
            "are not kept: the same request may be sent again and is carried out again"
            if policy.retry_safe
            else "are kept like any other answer"
        ),
    )


def _key_format(rule: Rule) -> str:
    quoted = f"a quoted string of 1 to {KEY_MAX_CHARS} printable ASCII characters"
    form = quoted if rule.strict else f"{quoted}, or without quotes where it has no spaces"
    if rule.namespaces is None:
        return form
    return f"{form}, beginning with " + " or ".join(f"{name}:" for name in rule.namespaces)


def _compared(rule: Rule) -> str:
    names = ", ".join(rule.request_headers)
    more = f"; and the headers {names}" if names else ""
    if rule.only is not None:
        members = ", ".join(rule.only)
        return (
            f"method, path, query, and of the body only {members}; all of it if it has none{more}"
        )
    rest = " except " + ", ".join(rule.ignore) if rule.ignore else ""
    return f"method, path, query, content type and body{rest}{more}"


# --- formats --------------------------------------------------------------------------------------


def as_data(
    entries: Sequence[PolicyEntry], *, replay_header: str = REPLAY_HEADER_DEFAULT
) -> dict[str, Any]:
    return {
        "header": HEADER_NAME,
        "replay_header": replay_header,
        "retention_header": "X-Idempotency-Retention",
        "unprotected_header": "X-Idempotency-Unprotected",
        "scope": "keys belong to the authenticated caller",
        "never_stored": sorted(NEVER_STORED_STATUSES),
        "routes": [asdict(entry) for entry in entries],
        "problems": [
            {
                "code": problem.name,
                "status": problem.status,
                "title": problem.title,
                "retryable": problem.retryable,
                "safe_new_key": problem.safe_new_key,
            }
            for problem in ALL_PROBLEMS
        ],
    }


def as_markdown(
    entries: Sequence[PolicyEntry],
    title: str = "Idempotency policy",
    *,
    replay_header: str = REPLAY_HEADER_DEFAULT,
) -> str:
    lines = [f"# {title}", "", *_wrapped(_general(replay_header)), "", "## Routes", ""]
    for entry in entries:
        lines += [f"### {' '.join(entry.methods)} {entry.path}", ""]
        lines += [f"* {name}: {value}" for name, value in _details(entry)] + [""]
    lines += ["## Refusals", "", "| status | code | meaning | retry with the same key |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {p.status} | {p.name} | {p.title} | {'yes' if p.retryable else 'no'} |"
        for p in ALL_PROBLEMS
    ]
    return "\n".join([*lines, ""])


def as_html(
    entries: Sequence[PolicyEntry],
    title: str = "Idempotency policy",
    *,
    replay_header: str = REPLAY_HEADER_DEFAULT,
) -> str:
    escape = html.escape
    general = _general(replay_header)
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(text)}</p>" for text in general)]
    parts.append("<h2>Routes</h2>")
    for entry in entries:
        parts.append(
            f"<h3><code>{escape(' '.join(entry.methods))} {escape(entry.path)}</code></h3>"
        )
        details = "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in _details(entry))
        parts.append(f"<dl>{details}</dl>")
    parts.append("<h2>Refusals</h2>")
    for problem in ALL_PROBLEMS:
        retry = "Retry with the same key." if problem.retryable else "Do not retry unchanged."
        parts.append(
            f'<section id="{escape(problem.name)}">'
            f"<h3>{problem.status} {escape(problem.title)}</h3>"
            f"<p>{escape(problem.detail)} {retry} <code>code: {escape(problem.name)}</code></p>"
            "</section>"
        )
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def _details(entry: PolicyEntry) -> list[tuple[str, str]]:
    details = [
        ("Key", "required" if entry.required else "optional; without one nothing is protected"),
        ("Format", entry.key_format),
        ("Kept for", entry.kept_for + " after the first answer"),
        ("Compared", entry.compared),
        ("Failures (5xx)", entry.failures),
        ("Request body", f"at most {entry.request_bytes_max:,} bytes"),
        ("Answer", f"given again if it has at most {entry.stored_bytes_max:,} bytes"),
    ]
    if entry.waits:
        details.append(("A duplicate", f"waits up to {entry.waits} for the first one's answer"))
    return details


def _general(replay_header: str) -> tuple[str, ...]:
    return (
        f"Send {HEADER_NAME} with a new random key for each new request, and the same key again "
        "when you retry it. A request is carried out once for its key; every retry gets the stored "
        f"answer, marked with {replay_header}: true.",
        "Keys belong to the authenticated caller; another caller's key is another key. A key that "
        "was used for one request is refused with 422 for another. While the first request is "
        "being processed, a retry is answered 409 with Retry-After.",
        "Refusals are problem details (RFC 9457). Their member `code` is the name given below and "
        "never changes. An answer with X-Idempotency-Unprotected was given without protection.",
        "Answers "
        + ", ".join(map(str, sorted(NEVER_STORED_STATUSES)))
        + " are never kept: they say nothing about the operation.",
    )


def _wrapped(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in (text, "")][:-1]


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem }}
dt {{ font-weight: 600 }} dd {{ margin: 0 0 .4rem 0 }}
section:target {{ outline: 2px solid; outline-offset: .5rem }}
</style></head><body>
{body}
</body></html>
"""


# --- the page -------------------------------------------------------------------------------------


def is_policy_page(method: str, path: str, page_path: str | None) -> bool:
    """Whether a request is for the policy page."""
    return path == page_path and method in _PAGE_METHODS


def policy_page(app: Any, method: str = "GET") -> Response:
    """The page of a guarded app, or of the middleware around it."""
    found = find_policy(app)
    shown = [route for route in found.routes if route.path not in found.hidden_paths]
    return page_with_entries(policy_entries(shown, found.policy), found.replay_header, method)


def page_with_entries(entries: Sequence[PolicyEntry], replay_header: str, method: str) -> Response:
    """The page with these entries."""
    body = as_html(entries, replay_header=replay_header).encode()
    headers = (*_HEADERS, (b"content-length", b"%d" % len(body)))
    return Response(200, headers, b"" if method == "HEAD" else body)


async def asgi_app_or_page(app: App, guarded: Any, scope: Any, receive: Any, send: Any) -> None:
    """Call the app; if it responds with 404, send the policy page of `guarded` instead."""
    is_replaced = False

    async def send_or_replace(message: Any) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] == _NOT_FOUND:
            is_replaced = True
            page = policy_page(guarded, scope["method"])
            start = {"type": "http.response.start", "status": page.status}
            await send({**start, "headers": list(page.headers)})
            await send({"type": "http.response.body", "body": page.body})
        elif not is_replaced:
            await send(message)

    await app(scope, receive, send_or_replace)


def wsgi_app_or_page(
    app: Callable[[Any, Any], Iterable[bytes]], guarded: Any, environ: Any, start_response: Any
) -> Iterable[bytes]:
    """The same as `asgi_app_or_page` for a WSGI app."""
    is_missing = False

    def start_or_replace(line: str, lines: Any, exc_info: Any = None) -> Any:
        nonlocal is_missing
        if line.startswith(str(_NOT_FOUND)):
            is_missing = True
            return lambda chunk: None
        return start_response(line, lines, *([exc_info] if exc_info else []))

    parts = app(environ, start_or_replace)
    if not is_missing:
        return parts
    if hasattr(parts, "close"):
        parts.close()
    page = policy_page(guarded, environ["REQUEST_METHOD"])
    start_response("200 OK", text_headers(page.headers))
    return [page.body]
