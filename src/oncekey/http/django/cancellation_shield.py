"""Keeps the cancellation of a request away from its guarded view, under ASGI (I14).

Django cancels the task of a request whose client has gone. The guard runs in a thread, which cannot
be cancelled. But asgiref passes the cancellation on to the coroutines that the thread waits for by
`async_to_sync`: behind the middleware the rest of the project, and in a view any async code that it
calls. A view that had charged a card would end there, and nobody would know with what result.

asgiref finds the tasks of these coroutines in a list of the thread. A guarded run gets a list of
its own, which nobody cancels. It stays in its thread and its context, so that its database
connections and open transactions are untouched. Django ends such a request by `request_finished`,
whose receivers close the connections: they run in the same thread, and so after the guarded run.

Knows no key and no view.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from asgiref.sync import SyncToAsync

_log: Final = logging.getLogger("oncekey")
_is_reported = False


@contextmanager
def shielded() -> Iterator[None]:
    """Whatever this thread runs by `async_to_sync` meanwhile is not cancelled with the request."""
    thread: Any = SyncToAsync.threadlocal
    cancelled_with_request = getattr(thread, "task_context", None)
    if cancelled_with_request is None:
        if getattr(thread, "main_event_loop", None) is not None:
            _report_unknown_asgiref()
        yield  # under WSGI nothing is cancelled
        return
    thread.task_context = []
    try:
        yield
    finally:
        thread.task_context = cancelled_with_request


def _report_unknown_asgiref() -> None:
    """asgiref has run this thread, but has no such list any more."""
    global _is_reported
    if not _is_reported:
        _is_reported = True
        _log.warning(
            "this version of asgiref is not known: a client that leaves during a guarded request "
            "may leave its key with an unknown outcome; please report it"
        )
