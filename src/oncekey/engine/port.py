"""What the surfaces above may ask of an engine, beyond the methods of `Once` and `AsyncOnce`.

Queues, tasks, the outbox, the dashboard, metrics and doctor come through here, so that what is
private in the engine stays private. A `Port` is for a `Once`, an `AsyncPort` for an `AsyncOnce`;
both are made wherever they are needed, and cost nothing. This module decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from oncekey.core.codec import Codec
from oncekey.core.commands import Seen
from oncekey.core.identity import KeyLike
from oncekey.core.origin import Origin
from oncekey.engine.batches.batch import Sent
from oncekey.engine.jobs import Job
from oncekey.engine.keys.administration import Plan
from oncekey.engine.once_base import OnceBase

if TYPE_CHECKING:
    from oncekey.engine.async_once import AsyncOnce
    from oncekey.engine.attempts.async_body import AsyncBody
    from oncekey.engine.attempts.runner import Body
    from oncekey.engine.once import Once
    from oncekey.engine.results import Result

T = TypeVar("T")
Found = tuple[Seen, Codec]


class AnyPort:
    """The questions that need no wait, so that both kinds of engines answer them alike."""

    __slots__ = ("_once",)

    def __init__(self, once: OnceBase) -> None:
        self._once = once

    @property
    def store(self) -> Any:
        """The store: its class and its guarantee are told to people, and an outbox is in it."""
        return self._once._store

    @property
    def codec(self) -> Codec:
        """The engine's own codec."""
        return self._once._jobs.codec

    def codec_of(self, fn: Callable[..., Any], operation: str, codec: Any, what: str) -> Any:
        """The codec for what a function returns: see `JobFactory.codec_of`."""
        return self._once._jobs.codec_of(fn, operation, codec, what)

    def codec_for(self, choice: Any) -> Codec:
        """The codec meant by `codec=`, the engine's own by default."""
        return self._once._jobs.codec_for(choice)

    def returned_codec(self, fn: Callable[..., Any], codec: Any, what: str) -> Any:
        """The codec for what a function returns that is no operation of its own."""
        return self._once._jobs.returned_codec(fn, codec, what)

    def tag(self, operation: str, key: KeyLike, scope: str) -> str:
        """The tag by which logs and errors call a key."""
        return self._once._jobs.identities.identify(scope, operation, key).tag

    def remembers(self, operation: str, key: KeyLike, scope: str) -> bool:
        """True if this process has the outcome of a key at hand. It may be over its time."""
        return (scope, operation, key) in self._once._outcomes.cache.entries

    def job(
        self,
        operation: str,
        key: KeyLike,
        *,
        scope: str,
        request: Any,
        options: Mapping[str, Any],
        origin: Origin | None,
    ) -> Job:
        """A job that claims a key, to be claimed with others and then run."""
        return self._once._jobs.make(operation, key, scope, request, None, options, origin)

    def join(self, connection: Any) -> Any:
        """The store's side of a caller's transaction."""
        return self._once._join(connection)[1]

    def run_nothing_in_background(self) -> None:
        """Leave sweeping and completing to other engines: the thread or the event loop of this one
        stands still between two calls."""
        self._once._background.clear()


class Port(AnyPort):
    """The questions to a `Once` that may wait."""

    __slots__ = ()
    _once: Once

    def __init__(self, once: Once) -> None:
        super().__init__(once)

    def ready(self) -> None:
        """Reach the store, unless it was reached before."""
        self._once._ready()

    def claim_many(self, jobs: Sequence[Job]) -> list[Sent]:
        """Claim the keys of several jobs together. Each must then be run, with its reply."""
        return self._once._runner.claim_many(jobs)

    def run(self, job: Job, body: Body[T], claimed: Sent) -> Result[T]:
        """Run a job whose claim was sent."""
        return self._once._runner.run(job, body, claimed)

    def look(self, operation: str, key: KeyLike, scope: str, codec: Any = None) -> Found:
        """What the store has of a key, and the codec of its value."""
        self.ready()
        id, reader = self._once._jobs.locate(operation, key, scope, codec)
        return self._once._runner.look(id), reader

    def plan(self, plan: Plan[T]) -> T:
        """Carry out a plan of administration.py."""
        return self._once._plan(plan)

    def flush(self) -> None:
        """Give the store the outcomes that it could not take before."""
        self._once._runner.deferred_writer.send()


class AsyncPort(AnyPort):
    """The questions to an `AsyncOnce` that may wait: see `Port`."""

    __slots__ = ()
    _once: AsyncOnce

    def __init__(self, once: AsyncOnce) -> None:
        super().__init__(once)

    async def ready(self) -> None:
        await self._once._ready()

    async def claim_many(self, jobs: Sequence[Job]) -> list[Sent]:
        return await self._once._runner.claim_many(jobs)

    async def run(self, job: Job, body: AsyncBody[T], claimed: Sent) -> Result[T]:
        return await self._once._runner.run(job, body, claimed)

    async def look(self, operation: str, key: KeyLike, scope: str, codec: Any = None) -> Found:
        await self.ready()
        id, reader = self._once._jobs.locate(operation, key, scope, codec)
        return await self._once._runner.look(id), reader

    async def plan(self, plan: Plan[T]) -> T:
        return await self._once._plan(plan)

    async def flush(self) -> None:
        await self._once._runner.loop_state().deferred_writer.send()
