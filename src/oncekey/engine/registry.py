"""The operations that are registered with an engine, so that somebody else can finish them.

The arguments of a registered operation are stored with its key before it begins. If its caller does
not come back, a completer (background/completion_flow.py) runs it to its end, or calls its
`recover`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from oncekey.core import codec as codecs
from oncekey.core.abandoned import Registration
from oncekey.core.codec import JSON
from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.identity import KeyLike
from oncekey.core.step_format import pack_step
from oncekey.engine.jobs import Job, JobFactory

TRIES_MAX: Final = 1_000

R = TypeVar("R", covariant=True)


class Registered(NamedTuple):
    """An operation that can be finished here: by running its body, by its `recover`, or both."""

    operation: str
    body: Callable[..., Any] | None
    codec: Any
    options: Mapping[str, Any]
    registration: Registration


class Registry:
    """The registered operations of one engine, by name."""

    def __init__(self, jobs: JobFactory) -> None:
        self._jobs = jobs
        self.operations: dict[str, Registered] = {}

    def register(
        self,
        operation: str,
        body: Callable[..., Any] | None,
        *,
        codec: Any,
        tries: int,
        options: Mapping[str, Any],
    ) -> Registered:
        """Register an operation. Mistakes show here, not when something has to be finished."""
        self._jobs.check_options(operation, codec, options)
        if operation in self.operations:
            raise ConfigurationError(f"the operation {operation!r} is registered already")
        if not isinstance(tries, int) or not 1 <= tries <= TRIES_MAX:
            raise ConfigurationError(f"tries={tries!r} must be 1 to {TRIES_MAX}")
        policy = self._jobs.policy.with_options(**options)
        grace = policy.times.recover_grace
        registration = Registration(body is not None, policy.recover is not None, tries, grace)
        made = Registered(operation, body, codec, options, registration)
        self.operations[operation] = made
        return made

    def job(self, registered: Registered, key: KeyLike, scope: str, request: Any) -> Job:
        """The job of a call; its arguments are stored before its body begins. `request` is what
        `plain_copy` gave."""
        job = self._jobs.make(
            registered.operation, key, scope, request, registered.codec, registered.options
        )
        # The raw key is part of them whatever `raw_keys` says: child keys are derived from it.
        envelope = _pack_request(request, job.policy.max_bytes)
        return job.with_arguments(pack_step({"key": job.key}, envelope))


def plain_copy(request: Any) -> Any:
    """A copy of the request as it comes back from JSON: this is what a completer would get."""
    try:
        return JSON.load(JSON.dump(request))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidKey(
            f"this request cannot be kept for finishing the operation later ({error}); give a "
            "registered operation plain values"
        ) from error


def _pack_request(request: Any, max_bytes: int) -> bytes:
    envelope = codecs.pack_value(JSON, request)
    if len(envelope) > max_bytes:
        raise InvalidKey(
            f"this request has {len(envelope)} bytes, more than max_bytes={max_bytes} for a "
            "registered operation, which keeps it"
        )
    return envelope


class _Run(Protocol[R]):
    def __call__(self, registered: Registered, key: KeyLike, request: Any, scope: str, /) -> R: ...


class Operation(Generic[R]):
    """What `@once.operation(...)` makes of a function `fn(attempt, request)`. R is a Result; for
    an AsyncOnce it is an awaitable of one."""

    def __init__(self, fn: Callable[..., Any], registered: Registered, run: _Run[R]) -> None:
        self.fn = fn
        self.name = registered.operation
        self._registered = registered
        self._run = run

    def run(self, key: KeyLike, request: Any = None, *, scope: str = "") -> R:
        """Run it at most once for this key, or replay its stored result. `request` must be plain
        values: `fn` gets them as they come back from JSON."""
        return self._run(self._registered, key, request, scope)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: called like the function it was made from, it would have no key."""
        raise TypeError(
            f"the operation {self.name!r} is not called but run, under a key: "
            f"{getattr(self.fn, '__name__', 'operation')}.run(key, request). The plain function is "
            "its .fn"
        )

    def __repr__(self) -> str:
        return f"<operation {self.name!r}>"
