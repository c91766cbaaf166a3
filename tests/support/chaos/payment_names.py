"""What the processes of a chaos run call things: variables of their environment, routes and ids."""

from __future__ import annotations

from typing import Final

STORE_VARIABLE: Final = "CHAOS_STORE"
ROWS_VARIABLE: Final = "CHAOS_ROWS"
NAME_VARIABLE: Final = "CHAOS_NAME"
GRACE_VARIABLE: Final = "CHAOS_RECOVER_GRACE"
KEEP: Final = "6h"  # longer than any run, whatever the clocks say
TABLE: Final = "transfers"  # the rows of transactional operations; nothing in it is unique
BROKER_VARIABLE: Final = "CHAOS_BROKER"
STREAM: Final = "orders"  # clients add to it
GROUP: Final = "shipping"  # consumers take from it
QUEUE_SCOPE: Final = "queue"


def operation_id(scope: str, key: str) -> str:
    """Return the name of one operation in the history: who asks, and under which key."""
    return f"{scope}/{key}"


def queue_id(key: str) -> str:
    return operation_id(QUEUE_SCOPE, key)
