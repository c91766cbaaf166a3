"""Who wants to know of every body that is about to run under a lease, in its own thread.

A lease's outcome is stored by itself, so whoever knows what is open around a body, such as a
transaction of a framework, can warn of it here. This module must not know frameworks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncekey.core.origin import is_own
from oncekey.engine.jobs import Job

Watcher = Callable[[str], None]

_log = logging.getLogger("oncekey")
watchers: tuple[Watcher, ...] = ()


def watch(watcher: Watcher) -> None:
    """Call `watcher` with the operation's name before each body of a `Once` that runs under a
    lease, in this process. A second time this changes nothing."""
    global watchers
    if watcher not in watchers:
        watchers = (*watchers, watcher)


def call_watchers(job: Job) -> None:
    if is_own(job.operation):
        return
    for watcher in watchers:
        try:
            watcher(job.operation)
        except Exception:  # a broken warning must not break a payment
            _log.exception("a watcher of leased bodies failed")
