"""What cannot be crossed: which pairs are refused, with which error, and which do not exist.

A pair that is refused ends with that error before the body has run, and never silently without its
promise. A pair that does not exist has nothing that could be asked for, so nothing refuses it; each
says why. Whatever is not named here must work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.crossings.axes import AXES, Crossing

_SYNC_ONLY = ("wsgi", "flask", "django", "celery", "dramatiq")
_ASYNC_ONLY = ("asgi", "fastapi", "taskiq", "faststream")
_HAS_NO_TRANSACTION = (
    "operation", "asgi", "wsgi", "flask", "celery", "dramatiq", "taskiq", "faststream",
)  # fmt: skip
_REQUIRES = ("at_most_once", "fenced", "transactional")


class Refusal(NamedTuple):
    """These values together are refused. `error` is the name of the class, `says` a regular
    expression that the message matches, `why` what the page says."""

    values: Mapping[str, tuple[str, ...]]
    error: str
    says: str
    why: str


class Missing(NamedTuple):
    """These values together do not exist."""

    values: Mapping[str, tuple[str, ...]]
    why: str


REFUSALS: Final = (
    Refusal(
        {
            "store": ("memory", "sqlite", "redis", "valkey", "cluster", "etcd"),
            "retention": ("ring",),
        },
        "ConfigurationError",
        "retention",
        "only PostgreSQL has a ring; elsewhere the option is unknown",
    ),
    Refusal(
        {"surface": _ASYNC_ONLY, "mode": ("sync",)},
        "ConfigurationError",
        "AsyncOnce, not a Once",
        "they need an `AsyncOnce`",
    ),
    Refusal(
        {"surface": _SYNC_ONLY, "mode": ("async",)},
        "ConfigurationError",
        "Once, not an? AsyncOnce|gave an? AsyncOnce",
        "they need a `Once`",
    ),
    Refusal(
        {"store": ("memory", "cluster"), "level": _REQUIRES},
        "ConfigurationError",
        # A Cluster that was not reached yet is refused for what is not known of it.
        "requires .* but would run at (best effort|.*not connected yet)|has no transactions",
        "they can lose what they acknowledged, so they are best effort",
    ),
    Refusal(
        {"store": ("redis", "valkey", "etcd"), "level": ("transactional",)},
        "ConfigurationError",
        "no transactions|requires transactional",
        "they have no transactions that a caller's rows could be in",
    ),
    Refusal(
        {"surface": _HAS_NO_TRANSACTION, "level": ("transactional",)},
        "ConfigurationError",
        "requires transactional",
        "they run outside of the caller's transactions",
    ),
    Refusal(
        {"move": ("arriving", "leaving"), "level": ("transactional",)},
        "ConfigurationError",
        "a transaction belongs to one database|requires transactional",
        "a transaction belongs to one database, and the keys are in two",
    ),
    Refusal(
        {"move": ("unfilled",)},
        "ConfigurationError",
        "still being filled from another one",
        "what only the old store knows would run again",
    ),
    Refusal(
        {"move": ("left",)},
        "ConfigurationError",
        "all keys of this store were moved",
        "the new store may have newer outcomes",
    ),
    Refusal(
        {"change": ("lowered", "replica"), "level": _REQUIRES},
        "StoreUnavailable",
        "the store's guarantee (has become|was .* and is) best effort",
        "the guarantee is below what is required; over HTTP it is a 503",
    ),
    Refusal(
        {"store": ("memory",), "reader": ("cli",)},
        "ExitCode.USAGE",
        "lives and ends within one process",
        "no other process can see it",
    ),
)

MISSING: Final = (
    Missing(
        {
            "store": ("memory", "sqlite", "etcd", "cluster"),
            "change": ("lowered", "replica", "forgotten"),
        },
        "memory and a Cluster with replicas are best effort from the start; a file has no server "
        "whose settings change; what etcd acknowledges is with a majority",
    ),
)


def refusals_of(crossing: Crossing) -> list[Refusal]:
    """The refusals that a crossing meets; none if it must work."""
    return [refusal for refusal in REFUSALS if _meets(crossing, refusal.values)]


def is_missing(crossing: Crossing) -> bool:
    return any(_meets(crossing, missing.values) for missing in MISSING)


def _meets(crossing: Crossing, values: Mapping[str, tuple[str, ...]]) -> bool:
    return all(getattr(crossing, axis) in among for axis, among in values.items())


def check_table() -> None:
    """Raise AssertionError if a rule names what is not in the table."""
    for rule in (*REFUSALS, *MISSING):
        for axis, values in rule.values.items():
            assert set(values) <= set(AXES[axis]), (axis, values)
