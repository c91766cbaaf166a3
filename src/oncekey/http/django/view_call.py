"""Calls a guarded view: in its transaction, out of reach of cancellations, errors made responses.

1. In a transaction of the database the key is committed with the rows of the view. A transaction
   that is open around the guard is refused.
2. Under ASGI, Django cancels the task of a request whose client has gone (I14). The guard runs in a
   thread, which cannot be cancelled. But asgiref passes the cancellation on to the coroutines that
   the thread waits for by `async_to_sync`: behind the middleware the rest of the project, and in a
   view any async code that it calls. A view that had charged a card would end there, and nobody
   would know with what result. asgiref finds the tasks of these coroutines in a list of the thread.
   A guarded run gets a list of its own, which nobody cancels. It stays in its thread and its
   context, so that its database connections and open transactions are untouched. Django ends such a
   request by `request_finished`, whose receivers close the connections: they run in the same
   thread, and so after the guarded run.
3. A view below `@transaction.atomic` and its commit are one call to the guard, so the traceback
   distinguishes them: that of a failed commit goes through `Atomic.__exit__`, that of a view does
   not. Inside of IdempotencyMiddleware Django makes a response of the error, and sends a signal
   before it does.

Owns what is known of asgiref's and Django's own code here. Knows no key.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.core.signals import got_request_exception
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic
from django.http import Http404
from django.http.multipartparser import MultiPartParserError

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.attempt_base import current_attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps
from oncekey.engine.once import Once, Operations
from oncekey.http.django.messages import DjangoResponse, django_request, is_unrouted, rendered
from oncekey.http.django.view_checks import refusal
from oncekey.http.unhandled_requests import is_raised_by_rest_validation

UNHANDLED: Final = "oncekey_unhandled"  # on a response that no view made
_FIRST_ERROR_STATUS: Final = 400
# Django responds to these with 400, 403 or 404. Any other exception of a view is a failure.
_HANDLED_ERRORS: Final = (
    Http404,
    PermissionDenied,
    MultiPartParserError,
    BadRequest,
    SuspiciousOperation,
)
_EXIT: Final = Atomic.__exit__.__code__
# Called when the commit is through, so what fails there takes no rows back.
_HOOKS: Final = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__

_log: Final = logging.getLogger("oncekey")
_is_reported = False


# --- transactions ---------------------------------------------------------------------------------


def joined_transaction(once: Once, alias: str) -> Operations:
    """The engine in the open transaction of Django's own connection."""
    connection = connections[alias]
    is_sqlite = connection.vendor == "sqlite"
    return once.in_transaction(connection.connection if is_sqlite else connection)


def rolling_back(
    call_app: Callable[[Attempt | None], DjangoResponse], alias: str
) -> Callable[[Attempt | None], DjangoResponse]:
    """`call_app`, but the rows of an error response are rolled back. The savepoint is Django's own,
    so that its on_commit functions are dropped with the rows, on SQLite too."""

    def call_and_roll_back(attempt: Attempt | None) -> DjangoResponse:
        with transaction.atomic(using=alias):
            response = call_app(attempt)
            if response.status >= _FIRST_ERROR_STATUS:
                transaction.set_rollback(True, using=alias)
            return response

    return call_and_roll_back


def check_outer_transactions(alias: str | None) -> None:
    """Raise ConfigurationError if a transaction is open around a guarded run: it is committed after
    the outcome is stored, and if that fails, retries get a response for rows that do not exist
    (I16). On the database of the key (`alias`) the key is in the transaction. Those that a TestCase
    opens are never committed."""
    for connection in connections.all(initialized_only=True):
        blocks = getattr(connection, "atomic_blocks", ())
        is_open = any(not getattr(block, "_from_testcase", False) for block in blocks)
        if connection.alias != alias and (is_open or _is_committed_by_hand(connection)):
            raise ConfigurationError(refusal(connection.alias))


def _is_committed_by_hand(connection: Any) -> bool:
    """Whether somebody has switched the connection's autocommit off, and so will commit."""
    is_usual = connection.connection is not None and connection.settings_dict["AUTOCOMMIT"]
    return bool(is_usual and not connection.in_atomic_block and not connection.autocommit)


# --- cancellations --------------------------------------------------------------------------------


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


# --- commits that fail ----------------------------------------------------------------------------


def is_failed_commit(error: BaseException | None) -> bool:
    """Whether this error was raised when a block of `transaction.atomic` was left."""
    codes = set()
    step = error.__traceback__ if error is not None else None
    while step is not None:
        codes.add(step.tb_frame.f_code)
        step = step.tb_next
    return _EXIT in codes and _HOOKS not in codes


def watch_failed_commits() -> None:
    """Log the steps that a failed commit inside of the middleware leaves behind."""
    got_request_exception.connect(_on_error, weak=False, dispatch_uid=__name__)


def _on_error(**_: Any) -> None:
    if is_failed_commit(sys.exc_info()[1]):
        warn_of_kept_steps(current_attempt())


# --- responses ------------------------------------------------------------------------------------


def project_call(get_response: Callable[[Any], Any], request: Any) -> Any:
    """Call the rest of the project, and mark a response that no view made."""
    response = get_response(request)
    if is_unrouted(request, response.status_code):
        setattr(response, UNHANDLED, True)
    return response


def view_call(request: Any, call: Callable[[], Any]) -> Any:
    """Call a view of Django's. Its response to a handled error is Django's own."""
    try:
        return call()
    except _HANDLED_ERRORS as error:
        return response_for_exception(request, error)


def rest_call(request: Any, call: Callable[[], Any]) -> Any:
    """Call a method of a REST framework view, and finalize its response as the view itself does:
    errors handled, content rendered. The view finalizes the response that it gets once more."""
    view = request.parser_context["view"]
    try:
        response = call()
    except Exception as error:
        try:
            response = view.handle_exception(error)  # raises it again if it is not an API error
        except _HANDLED_ERRORS as again:  # such as a form with more fields than Django allows
            response = response_for_exception(django_request(request), again)
        if is_raised_by_rest_validation(error):
            setattr(response, UNHANDLED, True)
    response = view.finalize_response(request, response, *view.args, **view.kwargs)
    return rendered(response)
