"""The consumers and publishers that a command names, the group in which they run side by side, and
the figures of each.

Consumers of threads have a thread each, those of tasks share one event loop in a thread of its own,
so that the main thread is free for signals. When all have ended, their engines are closed. Nothing
is printed here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from oncekey import AsyncOnce, Event, EventKind, Once
from oncekey.cli.command_input import import_object
from oncekey.cli.output import UsageProblem
from oncekey.engine.async_once import DRAIN_DEFAULT
from oncekey.queues import AsyncConsumer, Consumer
from oncekey.queues.consumer_base import ConsumerBase
from oncekey.queues.consumer_settings import SURFACE
from oncekey.queues.disposition import Kind

RATE_SECONDS: Final = 1.0  # the shortest time that a rate is measured over
_FIGURES: Final = {
    Kind.REMOVE: "removed",
    Kind.RETRY: "retried",
    Kind.HIDE: "hidden",
    Kind.DEAD_LETTER: "dead_letters",
    Kind.PARK: "parked",
    Kind.GIVE_BACK: "given_back",
}


class Member:
    """A consumer that runs, or a publisher of an outbox. `error` is what it has failed with."""

    def __init__(self, target: Any, name: str) -> None:
        self.target = target
        self.name = str(getattr(target, "name", None) or name)
        self.is_async = inspect.iscoroutinefunction(target.run)
        self.error: BaseException | None = None
        self.has_ended = False
        self.left = 0  # messages whose handlers still ran when it ended

    @property
    def in_hand(self) -> int:
        """How many messages it has taken and not settled."""
        return int(getattr(self.target, "in_hand", 0))

    @property
    def once(self) -> Once | AsyncOnce | None:
        once = getattr(self.target, "once", None)
        return once if isinstance(once, (Once, AsyncOnce)) else None

    def end(self, error: BaseException | None) -> None:
        self.error, self.left, self.has_ended = error, self.in_hand, True


def members_of(found: Any, name: str) -> list[Member]:
    """What was named on the command line: a consumer, several, or a function that makes them."""
    if inspect.iscoroutinefunction(found):
        raise UsageProblem(f"{name} is an async function; name a consumer, or a plain function")
    if inspect.isfunction(found):
        try:
            found = found()
        except Exception as error:  # the user's function may raise anything
            raise UsageProblem(f"{name}() failed: {type(error).__name__}: {error}") from error
    if isinstance(found, (list, tuple)):
        members = [member for one in found for member in members_of(one, name)]
        if not members:
            raise UsageProblem(f"{name} is empty; name at least one consumer")
        return members
    is_one = all(callable(getattr(found, verb, None)) for verb in ("run", "stop"))
    if not is_one or inspect.isclass(found):
        kind = f"the class {found.__name__}" if inspect.isclass(found) else type(found).__name__
        raise UsageProblem(
            f"{name} is {kind}; name a Consumer or an AsyncConsumer, a list of them, or a function "
            "that returns one"
        )
    return [Member(found, name)]


def consumer_of(name: str) -> Consumer | AsyncConsumer:
    """The one consumer that MODULE:CONSUMER names."""
    members = members_of(import_object(name), name)
    if len(members) > 1:
        raise UsageProblem(f"{name} is a list of {len(members)}; name one consumer")
    target = members[0].target
    if not isinstance(target, (Consumer, AsyncConsumer)):
        raise UsageProblem(
            f"{name} is of type {type(target).__name__}, which has no dead letters; name a consumer"
        )
    return target


class ConsumerGroup:
    """The consumers of one process. `on_end` is called in their threads whenever one has ended."""

    def __init__(self, members: Iterable[Member], on_end: Callable[[], object]) -> None:
        self.members = list(members)
        self._on_end = on_end
        self._changed = threading.Condition()
        self._threads_left = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_is_made = threading.Event()

    @property
    def failed(self) -> Member | None:
        """The first one that ended with an error."""
        return next((member for member in self.members if member.error is not None), None)

    @property
    def has_ended(self) -> bool:
        """True once all have ended, and their engines are closed."""
        with self._changed:
            return not self._threads_left

    @property
    def in_hand(self) -> int:
        return sum(member.in_hand for member in self.members)

    @property
    def left(self) -> int:
        return sum(member.left for member in self.members)

    def start(self) -> None:
        sync = [member for member in self.members if not member.is_async]
        self._threads_left = len(sync) + (len(sync) < len(self.members))
        for member in sync:
            self._start(self._run_one, member)
        if len(sync) < len(self.members):
            self._start(self._run_tasks)
            self._loop_is_made.wait()

    def stop(self) -> None:
        """Let all end after the handlers that run. May be called again."""
        for member in self.members:
            if not member.is_async:
                member.target.stop()
            elif self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed: all of it has ended
                    self._loop.call_soon_threadsafe(member.target.stop)

    def wait(self, seconds: float) -> bool:
        """Wait until all have ended; True if they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads_left, seconds)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        # Daemons, so that a handler that never ends does not keep the process alive.
        threading.Thread(target=run, args=arguments, name="oncekey-consume", daemon=True).start()

    def _thread_ends(self) -> None:
        with self._changed:
            self._threads_left -= 1
            self._changed.notify_all()
            self._on_end()  # under the lock: whoever waits for the end may take its means away

    # --- threads ------------------------------------------------------------------------------

    def _run_one(self, member: Member) -> None:
        try:
            member.target.run()
        except BaseException as error:
            member.end(error)
        else:
            member.end(None)
        try:
            self._close_engines()
        finally:
            self._thread_ends()

    def _close_engines(self) -> None:
        """Close the engines of threads after the last of them: a publisher may use one too. Not
        under handlers that still run: the process ends under those."""
        with self._changed:
            members = [member for member in self.members if not member.is_async]
            if not all(member.has_ended and not member.left for member in members):
                return
            for once in {member.once for member in members}:
                if isinstance(once, Once):
                    once.close()

    # --- tasks --------------------------------------------------------------------------------

    def _run_tasks(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop_is_made.set()
            runner.run(self._run_all_tasks())

    async def _run_all_tasks(self) -> None:
        """Run all to their end. The thread may live on for what handlers have left in others."""
        try:
            await self._run_and_close()
        finally:
            self._thread_ends()

    async def _run_and_close(self) -> None:
        members = [member for member in self.members if member.is_async]
        await asyncio.gather(*(self._run_task(member) for member in members))
        is_left = any(member.left for member in members)
        for once in {member.once for member in members}:
            if isinstance(once, AsyncOnce):
                await once.close(drain="0s" if is_left else DRAIN_DEFAULT)

    async def _run_task(self, member: Member) -> None:
        try:
            await member.target.run()
        except BaseException as error:
            member.end(error)
        else:
            member.end(None)
        self._on_end()


# --- figures --------------------------------------------------------------------------------------


class MemberFigures:
    """The figures of one consumer."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.is_consumer = isinstance(member.target, ConsumerBase)
        self._replayed = 0
        self._rate = 0.0
        self._measured = (time.monotonic(), 0)
        if self.is_consumer and member.once is not None:
            member.once.subscribe(self._count_replay)

    def _count_replay(self, event: Event) -> None:
        if event.kind is EventKind.REPLAYED and event.surface == SURFACE:
            self._replayed += event.operation == self.member.name

    def now(self) -> dict[str, float]:
        """The figures by name; those of a publisher are what it counts itself."""
        counts: Mapping[Any, int] = dict(getattr(self.member.target, "counts", {}))
        if not self.is_consumer:
            return {str(name).replace(" ", "_"): count for name, count in counts.items()}
        figures: dict[str, float] = {name: counts.get(kind, 0) for kind, name in _FIGURES.items()}
        self._measure(sum(counts.values()))
        figures |= {"replayed": self._replayed, "in_hand": self.member.in_hand}
        return figures | {"per_second": round(self._rate, 1)}

    def _measure(self, total: int) -> None:
        now, (then, before) = time.monotonic(), self._measured
        if now - then >= RATE_SECONDS:
            self._rate = (total - before) / (now - then)
            self._measured = (now, total)


def text_of(figures: Mapping[str, float]) -> str:
    """Figures as they are read: what never happened is left out, but for what was removed, or
    published."""
    parts = []
    for name, value in figures.items():
        if name == "per_second":
            parts.append(f"{value:,.0f}/s")
        elif value or not parts:
            noun = "dead letter" if (name, value) == ("dead_letters", 1) else name.replace("_", " ")
            parts.append(f"{value:,} {noun}")
    return ", ".join(parts) or "nothing"
