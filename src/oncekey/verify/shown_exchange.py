"""Exchanges as reports show them: curl lines, what was answered, and what was sent together.

Requests that were on their way at the same time and are the same command are one entry. Secrets of
callers appear by name only, also where a response repeats them, and cookies without their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oncekey.verify.recorded_exchange import Exchange, WireRequest, curl_line

SHOWN_RESPONSE_CHARS = 300
_SEARCHED_BYTES = 16 * 1024
_HIDDEN_VALUE = "..."
# Something shorter, such as the token "a" of a test, is part of ordinary words too.
_SECRET_MIN_CHARS = 4


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One answer, and how many of an entry's requests got it.

    headers   the lines of the response, in order
    """

    outcome: str
    status: int | None
    headers: tuple[str, ...]
    body: str
    count: int


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """One or more requests that are the same command.

    together   True if more than one was on its way at the same time
    at         seconds after the first exchange of the story
    """

    curl: str
    note: str
    count: int
    together: bool
    at: float
    answers: tuple[ShownAnswer, ...]


def story(exchanges: Sequence[Exchange], origin: str) -> list[ShownEntry]:
    """Return the exchanges in the order they were sent."""
    ordered = sorted(exchanges, key=lambda exchange: exchange.sent_at)
    began = ordered[0].sent_at if ordered else 0.0
    groups: list[tuple[str, list[Exchange]]] = []
    for exchange in ordered:
        curl = curl_line(exchange.request, origin)
        last = groups[-1] if groups else None
        if last is not None and last[0] == curl and _overlaps(last[1], exchange):
            last[1].append(exchange)
        else:
            groups.append((curl, [exchange]))
    return [_entry(curl, group, began) for curl, group in groups]


def _overlaps(group: Iterable[Exchange], exchange: Exchange) -> bool:
    return exchange.sent_at < max(one.answered_at for one in group)


def _entry(curl: str, group: list[Exchange], began: float) -> ShownEntry:
    note = group[0].note
    if len(group) > 1:
        # "duplicate 1 of 20" -> "duplicate"
        note = note.partition(" 1 of ")[0] if " 1 of " in note else "duplicate"
    return ShownEntry(
        curl=curl,
        note=note,
        count=len(group),
        together=len(group) > 1,
        at=group[0].sent_at - began,
        answers=_answers(group),
    )


def _answers(group: list[Exchange]) -> tuple[ShownAnswer, ...]:
    counts: dict[tuple[str, str], int] = {}
    firsts: dict[tuple[str, str], Exchange] = {}
    for exchange in sorted(group, key=lambda exchange: exchange.answered_at):
        kind = (exchange.outcome(), response_text(exchange))
        counts[kind] = counts.get(kind, 0) + 1
        firsts.setdefault(kind, exchange)
    return tuple(
        ShownAnswer(
            outcome=outcome,
            status=firsts[outcome, body].status,
            headers=response_headers(firsts[outcome, body]),
            body=body,
            count=count,
        )
        for (outcome, body), count in counts.items()
    )


def response_text(exchange: Exchange) -> str:
    """Return the beginning of the body, for people; "" if there is none."""
    if exchange.response is None or not exchange.response.body:
        return ""
    body = exchange.response.body
    # What is looked at is longer than what is shown, so that no secret is cut into two.
    text = _without_secrets(body[:_SEARCHED_BYTES].decode("utf-8", "replace"), exchange.request)
    if len(text) > SHOWN_RESPONSE_CHARS:
        return f"{text[:SHOWN_RESPONSE_CHARS]}... ({len(body):,} bytes)"
    return text


def response_headers(exchange: Exchange) -> tuple[str, ...]:
    """Return the response's header lines; a cookie is shown without its value."""
    if exchange.response is None:
        return ()
    lines = []
    for name, value in exchange.response.headers:
        text = _without_secrets(value.decode("latin-1"), exchange.request)
        if name.lower() == "set-cookie":
            cookie, _, rest = text.partition(";")
            text = f"{cookie.partition('=')[0]}={_HIDDEN_VALUE}" + (f";{rest}" if rest else "")
        lines.append(f"{name}: {text}")
    return tuple(lines)


def _without_secrets(text: str, request: WireRequest) -> str:
    names: dict[str, str] = {}
    for secret, name in request.secrets:
        whole = secret.decode("utf-8")
        # A response may repeat a token without the word Bearer before it.
        for part in (whole, whole.rpartition(" ")[2]):
            if len(part) >= _SECRET_MIN_CHARS:
                names.setdefault(part, name)
    if not names:
        return text
    # All at once, the longest first, so that nothing is found in what took a secret's place.
    longest_first = sorted(names, key=len, reverse=True)
    found = re.compile("|".join(re.escape(part) for part in longest_first))
    return found.sub(lambda match: f"<{names[match[0]]}>", text)
