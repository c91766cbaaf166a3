"""What the task frameworks share: how a task's call gets its key, scope and request, and is run.

Celery, Dramatiq and Taskiq receive, acknowledge and retry by themselves; a task is a function with
arguments, not a message with a body. So they do not use the consumer of this package. A guard wraps
the task's function: their hooks may be skipped or have their errors swallowed, a function cannot.

A guard knows no framework. The adapters say what each error means there.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, InvalidKey, KeyChanged
from oncekey.core.identity import OPERATION_MAX_CHARS, KeyLike
from oncekey.core.origin import ROUTE_MAX_CHARS, Origin, shown
from oncekey.core.policy import OPTION_NAMES
from oncekey.engine.body_check import mentions_commit
from oncekey.engine.keys.key_status import status_of
from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.disposition import HIDE_MARGIN_S
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import REDRIVE_HEADER, redrive_of

DELIVERY: Final = "delivery"
ARGUMENTS: Final = "arguments"
SURFACE: Final = "queue"
# How long a worker waits before it puts a task back whose store does not answer. It keeps its place
# meanwhile, so that a queue is not emptied into the workers' memory while the store is away.
STORE_PAUSE_S: Final = 5.0
# How long a task whose key is held elsewhere is put off the first time; doubled with each time.
PUT_OFF_FIRST_S: Final = 1.0

_log = logging.getLogger("oncekey")

TaskKey = str | Callable[..., Any]
TaskRequest = str | Callable[..., Any] | None
TaskScope = str | Callable[..., Any]


def put_off_s(number: int, lease_left: float, longest: float) -> float:
    """How long to put off a task whose key is held elsewhere, for the `number`th time, from 0. Most
    duplicates come while the first run is about to end, so it is not the whole lease at once."""
    return min(math.ldexp(PUT_OFF_FIRST_S, min(number, 32)), lease_left + HIDE_MARGIN_S, longest)


def warn_of_late_commits(task: str, hooks: Iterable[Any]) -> None:
    """Log which hooks of a framework, which run when the outcome of a task is stored, look as if
    they commit. What they do cannot be waited for, nor is it known for certain."""
    for hook in hooks:
        if mentions_commit(hook):
            _log.warning(
                "task %r: %s names a commit, and runs after the outcome is stored. If that commit "
                "fails, the task counts as done and its rows are missing. Commit in the task's "
                "own function",
                task,
                shown(hook.__qualname__, ROUTE_MAX_CHARS),
            )


# Chooses the codec for what a function returns: that of an engine's JobFactory.
CodecOf = Callable[[Callable[..., Any], str, Any, str], Any]


class TaskGuard:
    """The guard of one task. `function` is the task's own, without a bound `self`.

    operation  the task's name, unless another is given: a renamed task would run its keys again
    key        a function of the task's arguments, or "delivery" for the id that the framework gave
               the task, which does not recognise a task that was sent twice
    request    what must be the same for every task of one key: "arguments", a function of them, or
               None
    scope      text, or a function of the arguments
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operation: str,
        *,
        key: TaskKey,
        scope: TaskScope = "",
        request: TaskRequest = ARGUMENTS,
        codec: Any = None,
        codec_of: CodecOf,
        options: Mapping[str, Any],
    ) -> None:
        if key != DELIVERY and not callable(key):
            raise ConfigurationError(
                f"task {operation!r}: key={key!r} must be a function of the task's arguments, or "
                "'delivery' for the task's own id, which does not recognise a task that is sent "
                "twice"
            )
        if not isinstance(scope, str) and not callable(scope):
            raise ConfigurationError(f"task {operation!r}: scope must be text or a function")
        if request not in (ARGUMENTS, None) and not callable(request):
            raise ConfigurationError(
                f"task {operation!r}: request={request!r} must be 'arguments', a function of the "
                "task's arguments, or None"
            )
        if len(operation) > OPERATION_MAX_CHARS or not operation.isprintable():
            raise ConfigurationError(
                f"task {operation!r}: its name is that of its operation, which may have "
                f"{OPERATION_MAX_CHARS} characters, all printable; give operation= a shorter one"
            )
        unknown = options.keys() - set(OPTION_NAMES)
        if unknown:
            raise ConfigurationError(
                f"unknown option {', '.join(sorted(unknown))} of task {operation!r}"
            )
        self.operation = operation
        self.options = dict(options)
        self._key, self._scope, self._request = key, scope, request
        self._codec = codec_of(function, operation, codec, f"task {operation!r}")
        self._signature = inspect.signature(function)
        self._origin = Origin(SURFACE, shown(operation, ROUTE_MAX_CHARS))

    def run(
        self,
        run: Callable[..., Any],
        body: Callable[[Any], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        delivery_id: str | None,
    ) -> Any:
        """Call `run`, which is that of Once or AsyncOnce, for a task with these arguments."""
        return run(
            self.operation,
            self._key_of(args, kwargs, delivery_id),
            body,
            scope=self.scope_of(args, kwargs),
            request=self._request_of(args, kwargs),
            codec=self._codec,
            origin=self._origin,
            **self.options,
        )

    def open_redriven(
        self,
        once: Once,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        delivery_id: str | None,
        redrive_id: str,
    ) -> None:
        """Free the failed key of a task that was moved back from a dead-letter queue. Each id opens
        a key once, however often its message is delivered."""
        redrive = redrive_of(Message(body=b"", queue="", headers={REDRIVE_HEADER: redrive_id}))
        if redrive is None:
            return
        key, scope = self._key_of(args, kwargs, delivery_id), self.scope_of(args, kwargs)
        seen, codec = Port(once).look(self.operation, key, scope, self._codec)
        record = seen.record
        if record is None or not redrive.opens(record, seen.now):
            return
        status = status_of(seen, codec)
        assert status is not None
        try:
            once.release(status, by=f"task {self.operation}", why=redrive.why(record))
        except KeyChanged:
            pass  # another delivery of it was faster

    def scope_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if isinstance(self._scope, str):
            return self._scope
        scope: str = self._scope(*args, **kwargs)
        return scope

    def _key_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], delivery_id: str | None
    ) -> KeyLike:
        if callable(self._key):
            key: KeyLike = self._key(*args, **kwargs)
            return key
        if not delivery_id:
            raise InvalidKey(
                f"task {self.operation!r} has key='delivery' and was called without a message, so "
                "it has no id; give key= a function of its arguments"
            )
        return delivery_id

    def _request_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if callable(self._request):
            return self._request(*args, **kwargs)
        if self._request is None:
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            # The call does not fit the function, which will say so itself.
            return {"args": list(args), "kwargs": dict(kwargs)}
        return {"args": list(bound.args), "kwargs": dict(bound.kwargs)}
