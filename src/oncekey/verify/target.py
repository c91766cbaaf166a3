"""The API under test: a valid request, its variants, two callers, and how effects are counted.

A template has placeholders, which get new values for each operation:
{{unique}} a text, {{number}} a whole number, {{key}} the operation's key.
"""

from __future__ import annotations

import enum
import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import Exchange, Headers, WireRequest

KEY_HEADER_DEFAULT = "Idempotency-Key"
_NUMBERS = itertools.count(secrets.randbelow(1_000_000) + 1)


class Variant(enum.StrEnum):
    """Which kind of request an operation is made of; MAIN is always there."""

    MAIN = "main"
    OTHER_BODY = "other-body"
    OTHER_PATH = "other-path"
    SLOW = "slow"
    SLOW_FAILING = "slow-failing"
    REJECTED = "rejected"
    FAILING = "failing"
    NO_CONTENT = "no-content"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A request with placeholders in path, headers and body."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """The headers that say who calls; a report shows `name` in place of their values."""

    name: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical operation: a key, the values of its placeholders, and its request.

    before   how many effects there were before it, where only a total can be counted
    """

    target: Target
    variant: Variant
    key: str
    values: Mapping[str, str]
    before: int = 0

    def request(
        self,
        *,
        caller: Caller | None = None,
        variant: Variant | None = None,
        values: Mapping[str, str] | None = None,
    ) -> WireRequest:
        """Return the operation's request with its key; by another caller, of another variant or
        with other values if they are given."""
        template = self.target.variants[variant or self.variant]
        who = caller or self.target.caller
        known = values or self.values
        key = self.target.key_text(self.key).encode("ascii")
        headers: Headers = (
            *((name, fill(text, known).encode("utf-8")) for name, text in template.headers),
            *((name, text.encode("utf-8")) for name, text in who.headers),
            (self.target.key_header, key),
        )
        hidden = tuple(
            (text.encode("utf-8"), f"{name} of the {who.name}") for name, text in who.headers
        )
        body = fill(template.body, known).encode("utf-8")
        return WireRequest(template.method, fill(template.path, known), headers, body, hidden)


class CountFailed(Exception):
    """The effects could not be counted; the message says why."""


class EffectCounter(Protocol):
    """Counts how often an operation had its effect."""

    @property
    def is_total(self) -> bool:
        """True if it counts the effects of all operations together."""

    @property
    def sees_lost_responses(self) -> bool:
        """False if it only knows what responses tell."""

    def describe(self) -> str:
        """Say in a few words what it asks, for a dry run and the report."""

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        """Return the number. `exchanges` are all of this operation so far. Raises CountFailed."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the verifier knows about an API.

    variants       templates by kind; the more there are, the more can be observed
    other_caller   a second caller with rights of its own; None if there is none to try with
    bad_caller     credentials that must be refused
    quoted_key     True if keys are sent as RFC 9651 Strings, in quotes
    keep_seconds   how long the API says it remembers a key, if that is short enough to wait for
    slow_seconds   about how long the handler of the SLOW variant works
    """

    origin: Origin
    variants: Mapping[Variant, RequestTemplate]
    caller: Caller = field(default_factory=lambda: Caller("caller"))
    other_caller: Caller | None = None
    bad_caller: Caller | None = None
    key_header: str = KEY_HEADER_DEFAULT
    quoted_key: bool = False
    effects: EffectCounter | None = None
    keep_seconds: float | None = None
    slow_seconds: float | None = None

    def key_text(self, key: str) -> str:
        """Return the key as its header carries it."""
        return f'"{key}"' if self.quoted_key else key


def new_values(key: str) -> dict[str, str]:
    """Return fresh values for the placeholders of one operation."""
    return {"unique": secrets.token_hex(8), "number": str(next(_NUMBERS)), "key": key}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return the text with its placeholders replaced."""
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def other_body(body: str) -> str | None:
    """Return a body that asks for something else: a number in it is one larger.

    None if the body is not JSON with a number somewhere; the user has to give one then.
    """
    try:
        document = json.loads(body)
    except ValueError:
        return None
    changed, done = _one_larger(document)
    return json.dumps(changed) if done else None


def _one_larger(value: Any) -> tuple[Any, bool]:
    if isinstance(value, int) and not isinstance(value, bool):
        return value + 1, True
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for index, item in items:
        changed, done = _one_larger(item)
        if done:
            value[index] = changed
            return value, True
    return value, False
