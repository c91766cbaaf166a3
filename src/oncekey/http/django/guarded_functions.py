"""Warns of plain guarded functions that run in an open transaction of Django's (I16).

Such a function's outcome is stored under its lease, at once. If the transaction is rolled back
after that, retries get a success for rows that do not exist. A guarded view is refused there, see
middleware.py; a function may write no rows there, so this is a warning. It must not know views.
"""

from __future__ import annotations

import logging
from typing import Final

from django.conf import settings
from django.db import connections

from oncekey.engine.port import watch_leased_bodies

_WARNED_MAX: Final = 1_000
_warned: set[str] = set()
_log = logging.getLogger("oncekey")


def warn_of_transaction(operation: str) -> None:
    """Log, once per operation, that a transaction is open around its body. Those that a TestCase
    opens are never committed, and do not count."""
    if operation in _warned or len(_warned) >= _WARNED_MAX:
        return
    if not settings.configured:  # nothing of Django's is in use, so no transaction of it is open
        return
    for connection in connections.all(initialized_only=True):
        blocks = getattr(connection, "atomic_blocks", ())
        if all(getattr(block, "_from_testcase", False) for block in blocks):
            continue
        _warned.add(operation)
        _log.warning(
            "operation %r runs under a lease inside transaction.atomic() of the database %r: its "
            "outcome is stored at once, so if the block is rolled back, retries replay a success "
            "for rows that do not exist. Run it by once.in_transaction on that connection, or in a "
            "view guarded by @idempotent(transaction=True), or call it outside of the block "
            "(docs/how-to/where-you-commit.md#guarded-functions-in-django)",
            operation,
            connection.alias,
        )
        return


watch_leased_bodies(warn_of_transaction)
