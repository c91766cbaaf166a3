"""The operation the demo guards: charging a card, in the variants the scenarios need.

Owns the bodies and `charge`, the one way every caller here, in every process, asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oncekey import Attempt, Once, Recovery, Result, Terminal, UnknownKey
from oncekey.cli.demo.provider import Declined, Provider
from oncekey.cli.demo.stage import PATIENCE_SECONDS, StageError

OPERATION = "charge"
CENTS = 4_900
STEP = "payment:charge"

Receipt = dict[str, str]
Body = Callable[[Attempt], Receipt]


def charge(
    once: Once, order: str, body: Body, *, cents: int = CENTS, **options: Any
) -> Result[Receipt]:
    """Charge the order at most once: its id is the key, what is asked is the amount."""
    return once.run(OPERATION, order, body, request={"cents": cents}, **options)


def plain(provider: Provider, order: str) -> Body:
    """Sends no key downstream, so the provider acts as often as this body runs."""
    return lambda attempt: provider.charge(order, CENTS)


def keyed(provider: Provider, order: str) -> Body:
    """Sends the child key, which is the same on every attempt: the provider dedups on it."""
    return lambda attempt: provider.charge(order, CENTS, idempotency_key=attempt.child_key(STEP))


def declined(provider: Provider, order: str) -> Body:
    """The card is refused: Terminal makes that the stored answer."""

    def body(attempt: Attempt) -> Receipt:
        try:
            return provider.charge(order, CENTS, broke=True)
        except Declined as error:
            raise Terminal(str(error)) from error

    return body


def ask_provider(provider: Provider) -> Callable[[UnknownKey], Recovery]:
    """`recover=`: the dead attempt's child key tells the provider which charge is meant."""

    def recover(unknown: UnknownKey) -> Recovery:
        receipt = provider.find(unknown.child_key(STEP))
        return Recovery.free() if receipt is None else Recovery.succeeded(receipt)

    return recover


class Held:
    """A body that charges and then stands still until it is let go."""

    def __init__(self, provider: Provider, order: str) -> None:
        self._body = plain(provider, order)
        self._inside = threading.Event()
        self._go = threading.Event()

    def __call__(self, attempt: Attempt) -> Receipt:
        receipt = self._body(attempt)
        self._inside.set()
        self._go.wait(PATIENCE_SECONDS)
        return receipt

    def wait_until_inside(self) -> None:
        if not self._inside.wait(PATIENCE_SECONDS):
            raise StageError("the first caller never started")

    def let_go(self) -> None:
        self._go.set()
