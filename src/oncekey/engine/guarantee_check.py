"""Compares what a store promises now with what an operation requires.

A store's guarantee may become lower while an engine relies on it. Owns the words for that. Knows no
store, thread or loop.
"""

from __future__ import annotations

import logging

from oncekey.core.errors import NotStarted, StoreUnavailable
from oncekey.core.guarantees import Guarantee
from oncekey.core.identity import Identity
from oncekey.core.policy import Policy

_log = logging.getLogger("oncekey")


class GuaranteeLost(NotStarted, StoreUnavailable):
    """The store promises less than this operation requires, since it was opened: nothing has
    happened, the key stays free."""


def refusal_of(
    promised: Guarantee, policy: Policy, identity: Identity, *, transactional: bool
) -> GuaranteeLost | None:
    """The error to raise where the operation must not run."""
    effective = promised.effective(retry_safe=policy.retry_safe, transactional=transactional)
    required = policy.required_level
    if effective >= required:
        return None
    return GuaranteeLost(
        f"it requires {required.label}, and the store's guarantee has become {effective.label}: "
        f"{promised.reason}. Nothing ran",
        ambiguous=False,
        operation=identity.operation,
        tag=identity.tag,
    )


def log_change(before: Guarantee, promised: Guarantee) -> None:
    _log.log(
        logging.WARNING if promised.level < before.level else logging.INFO,
        "the store's guarantee was %s and is %s: %s",
        before.level.label,
        promised.level.label,
        promised.reason,
    )
