"""What the processes of a chaos run call things: variables of their environment, routes and ids."""

from __future__ import annotations

from typing import Final

STORE_VARIABLE: Final = "CHAOS_STORE"
ROWS_VARIABLE: Final = "CHAOS_ROWS"
NAME_VARIABLE: Final = "CHAOS_NAME"
GRACE_VARIABLE: Final = "CHAOS_RECOVER_GRACE"
REQUIRE_VARIABLE: Final = "CHAOS_REQUIRE"  # the level below which nothing may run
KEEP: Final = "6h"  # longer than any run, whatever the clocks say
TABLE: Final = "transfers"  # the rows of operations that write them; nothing in it is unique
COMMIT_FAULTS: Final = "commit_faults"  # a row in it says what a COMMIT of new rows ends with
COMMITS_HIT: Final = "commits_hit"  # a sequence: how many COMMITs were made to fail
BROKER_VARIABLE: Final = "CHAOS_BROKER"
STREAM: Final = "orders"  # clients add to it
GROUP: Final = "shipping"  # consumers take from it
QUEUE_SCOPE: Final = "queue"
# Where a consumer takes its messages from: `stream`, `second` (a stream of the same name in another
# database of the server) or `rabbitmq`.
SOURCE_VARIABLE: Final = "CHAOS_SOURCE"
RABBIT_IN_TASKS: Final = "rabbitmq in tasks"  # a source beside "stream", "second" and "rabbitmq"
REFUSED_EXIT: Final = 3  # the exit code of a consumer that refuses to run
BROKER_NAME_VARIABLE: Final = "CHAOS_BROKER_NAME"
SECOND_SCOPE: Final = "second"
SECOND_NAME: Final = "second"
RABBIT_VARIABLE: Final = "CHAOS_RABBITMQ"
RABBIT_QUEUE_VARIABLE: Final = "CHAOS_RABBITMQ_QUEUE"
PARCELS: Final = "parcels"  # the name of RabbitMQ's consumer
PARCEL_SCOPE: Final = "parcel"


def operation_id(scope: str, key: str) -> str:
    """Return the name of one operation in the history: who asks, and under which key."""
    return f"{scope}/{key}"


def queue_id(key: str, scope: str = QUEUE_SCOPE) -> str:
    return operation_id(scope, key)
