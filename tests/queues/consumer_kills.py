"""Consumers that kill themselves at every point of a message's way, on any broker.

python -m tests.queues.consumer_kills <module:class> <arguments> <store url> <kind> <folder> <what>

A broker takes part by a class that is a `QueueUnderTest`; `Kills` and `storm` run this module with
it, in a process of its own that imports everything once and then only forks: for each kill point a
child that sends messages to a queue of its own and consumes them until it kills itself with
SIGKILL, and then a child that consumes what is left. The parent never uses a broker's client,
because most do not survive a fork.

The handler's effect is a line in a file, written before anything else can happen; effect_log.py has
how it is judged. The lease of a consumer that kills itself is short, because the next one waits for
its end. That next one has a lease that no slow machine outlasts. Arguments and results are JSON.
consumer_storm.py has the random kills.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tests.queues.effect_log import Effects, note_effect
from tests.queues.kill_switch import (
    KillSwitch,
    kill_in_async_broker,
    kill_in_async_store,
    kill_in_broker,
    kill_in_store,
)
from tests.support.servers import processes

from oncekey import AsyncOnce, Once, Policy
from oncekey.engine.store_urls import async_store, blocking_store

ROOT: Final = Path(__file__).parents[2]
MESSAGES: Final = 6
CONCURRENCY: Final = 2
SHORT_LEASE: Final = "1s"
LONG_LEASE: Final = "30s"
# A kill comes before or after each of these; "receive" is one that has brought messages.
POINTS: Final = (
    "after receive",
    "before Claim",
    "after Claim",
    "before effect",
    "after effect",
    "before Finish",
    "after Finish",
    "before settle",
    "after settle",
)
# At these points no effect has happened yet.
WITHOUT_EFFECT: Final = ("after receive", "before Claim", "after Claim")
DRAIN_SECONDS: Final = 180
_NOT_DRAINED: Final = 3
_POLL_SECONDS: Final = 0.5  # a slow emulator has more to do than to be asked


class QueueUnderTest(Protocol):
    """What a broker's tests give to this harness. A process makes its own object of it, with the
    arguments that the test gave; every method may be called in another process."""

    def __init__(self, **arguments: Any) -> None: ...

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        """Create the queue and all that belongs to it if it is missing, and send messages. It may
        wait for consumers, so that a slow broker does not have too many at a time."""

    def consumer(self, once: Once, queue: str, handler: Callable[..., Any], **options: Any) -> Any:
        """Return a consumer with these options (name, key, ...)."""

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> Any:
        """Return an async one. A broker without it has no tests of the kind "async"."""

    def is_drained(self, queue: str) -> bool:
        """True if nothing of the queue is left to be consumed, neither waiting nor held."""


class KillResult(NamedTuple):
    """What one kill point led to: how both children ended, who they were, and what is in the log of
    effects."""

    queue: str
    killed: int
    drained: int
    victim: int
    heir: int
    lines: list[str]

    @property
    def effects(self) -> Effects:
        return Effects(self.lines)

    def check(self, point: str, messages: int = MESSAGES) -> None:
        """Check that each message had its effect, and again only from the consumer that came after
        the kill, once, if the first one had not finished it."""
        assert self.killed == -signal.SIGKILL, f"{point}: ended with {self.killed}"
        assert self.drained == 0, f"{point}: the queue is not empty, or the consumer failed"
        effects = self.effects
        effects.check({str(number) for number in range(messages)})
        heirs = effects.counts(self.heir)
        assert max(heirs.values(), default=0) <= 1, f"{point}: {heirs}"
        if point in WITHOUT_EFFECT:
            assert not effects.counts(self.victim), f"{point}: {effects.all}"
        if point == "after effect":
            assert effects.counts(self.victim), f"{point}: {effects.all}"

    def check_parked(self, point: str, parked: Sequence[tuple[object, str]]) -> None:
        """Check that nothing ran twice, and that what was left open is parked, with its reason."""
        assert (self.killed, self.drained) == (-signal.SIGKILL, 0), (point, self)
        counts = self.effects.counts()
        assert max(counts.values()) == 1, f"{point}: an effect happened twice: {counts}"
        orders = [str(order) for order, _ in parked]
        assert 1 <= len(orders) == len(set(orders)), f"{point}: {parked}"
        assert {*orders, *counts} == {str(number) for number in range(MESSAGES)}, f"{point}: lost"
        assert all("OutcomeUnknown" in reason for _, reason in parked), parked


class Case(NamedTuple):
    """A consumer that is to be killed: sync or async, where, and how its messages are consumed."""

    kind: str
    point: str
    retry_safe: bool = True


# Every point, and both kinds. A consumer of the other kind differs in its driver alone.
COVERING: Final = [
    Case("sync" if number % 2 == 0 else "async", point) for number, point in enumerate(POINTS)
]
OTHERS: Final = [Case("async" if case.kind == "sync" else "sync", case.point) for case in COVERING]
# What a kill left open and nobody may run again is parked.
PARKING: Final = [Case("sync", "after Claim", False), Case("sync", "after effect", False)]


class Kills:
    """The kills of one test module: all of them happen at once, when the first result is asked for,
    because most of the time passes while the leases of killed consumers end."""

    def __init__(
        self,
        queue_class: type[QueueUnderTest],
        arguments: dict[str, Any],
        store: str,
        directory: Path,
        cases: Sequence[Case],
    ) -> None:
        self._harness = (queue_class, arguments, store, directory)
        self._cases = cases

    def __getitem__(self, case: Case) -> KillResult:
        return self._results[case]

    @functools.cached_property
    def _results(self) -> dict[Case, KillResult]:
        queue_class, arguments, store, directory = self._harness
        found = run_harness(queue_class, arguments, store, "", directory, self._cases, 280)
        return {case: KillResult(*result) for case, result in zip(self._cases, found, strict=True)}


def run_harness(
    queue_class: type[QueueUnderTest],
    arguments: dict[str, Any],
    store: str,
    kind: str,
    directory: Path,
    what: Any,
    seconds: float,
    module: str = "tests.queues.consumer_kills",
) -> Any:
    """Run this module, or consumer_storm, with a queue; return what it printed."""
    name = f"{queue_class.__module__}:{queue_class.__qualname__}"
    given = [name, json.dumps(arguments), store, kind, str(directory), json.dumps(what)]
    done = subprocess.run(
        [sys.executable, "-m", module, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    if done.stderr:
        sys.stderr.write(done.stderr[-5_000:])
    return json.loads(done.stdout)


# --- in the harness's own process -----------------------------------------------------------------


class Work(NamedTuple):
    """What every child is made from."""

    queues: QueueUnderTest
    store: str
    kind: str
    directory: Path

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Work:
        name, given, store, kind, directory = arguments[:5]
        module, _, attribute = name.partition(":")
        queues = getattr(import_module(module), attribute)(**json.loads(given))
        return cls(queues, store, kind, Path(directory))

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        """Send messages, and note that all were sent."""
        self.queues.send(queue, bodies)
        self._sent(queue).touch()

    def is_over(self, queue: str) -> bool:
        return self._sent(queue).exists() and self.queues.is_drained(queue)

    def _sent(self, queue: str) -> Path:
        return self.directory / f"{queue}.sent"

    def lines_of(self, queue: str) -> list[str]:
        """The log of effects of a queue."""
        path = self.directory / queue
        return path.read_text().splitlines() if path.exists() else []

    def consume(
        self, queue: str, switch: KillSwitch, seconds: float = DRAIN_SECONDS, **options: Any
    ) -> None:
        """Consume a queue until all was sent and nothing is left of it, or until the switch kills
        this process. It fails after so many seconds. A switch that kills nothing has the long
        lease, if no other one is given."""
        options = {
            "name": "shipping",
            "key": "json:$.order",
            "concurrency": CONCURRENCY,
            "retry_safe": True,
            "backoff": "100ms",
            "max_tries": 15,  # a message may be in the hand of each consumer that is killed
            "lease": SHORT_LEASE if switch.kills else LONG_LEASE,
            **options,
        }
        path = self.directory / queue
        if self.kind == "async":
            asyncio.run(self._consume_async(queue, switch, path, seconds, options))
            return
        store = kill_in_store(blocking_store(self.store), switch, path)
        once = Once(store, policy=Policy(lease=options.pop("lease")))
        handler = functools.partial(effect, path, switch)
        consumer = self.queues.consumer(once, queue, _with_attempt(handler), **options)
        kill_in_broker(consumer._broker, switch)
        _end_when(functools.partial(self.is_over, queue), seconds)
        consumer.run()

    async def _consume_async(
        self,
        queue: str,
        switch: KillSwitch,
        path: Path,
        seconds: float,
        options: dict[str, Any],
    ) -> None:
        store = kill_in_async_store(async_store(self.store), switch, path)
        once = AsyncOnce(store, policy=Policy(lease=options.pop("lease")))

        async def handler(message: Any, attempt: Any) -> None:
            effect(path, switch, message, attempt)

        consumer = self.queues.async_consumer(once, queue, handler, **options)
        kill_in_async_broker(consumer._broker, switch)
        _end_when(functools.partial(self.is_over, queue), seconds)
        await consumer.run()


def _with_attempt(handler: Callable[..., Any]) -> Callable[..., Any]:
    def handle(message: Any, attempt: Any) -> None:
        handler(message, attempt)

    return handle


def effect(path: Path, switch: KillSwitch, message: Any, attempt: Any) -> None:
    """The effect on the outside world."""
    switch.at("before effect")
    note_effect(path, message.json()["order"], attempt)
    switch.at("after effect")


def _end_when(is_drained: Callable[[], bool], seconds: float) -> None:
    """End this process from a thread when its queue is drained, or when that takes too long. An
    orderly stop would wait for the end of a long poll; other tests are about that."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while not is_drained():
            if time.monotonic() > end:
                os._exit(_NOT_DRAINED)
            time.sleep(_POLL_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


# --- children -------------------------------------------------------------------------------------


def fork(run: Callable[[], object]) -> int:
    """Run it in a forked child, which ends with 0, or with 1 and its traceback if it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def wait_for(pid: int) -> int:
    """Wait for a child and return its exit code, which is negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def body_of(number: int) -> str:
    return json.dumps({"order": number})


def _main(arguments: Sequence[str]) -> None:
    made = Work.of(arguments)
    cases = [Case(*case) for case in json.loads(arguments[5])]
    works = [made._replace(kind=case.kind) for case in cases]
    queues = [processes.fresh_name(f"kill-{case.point.replace(' ', '-')}") for case in cases]
    bodies = [body_of(number) for number in range(MESSAGES)]
    senders = [fork(functools.partial(made.send, queue, bodies)) for queue in queues]
    assert [wait_for(pid) for pid in senders] == [0] * len(senders)

    def start(number: int, switch: KillSwitch) -> int:
        consume = functools.partial(works[number].consume, queues[number], switch)
        return fork(functools.partial(consume, retry_safe=cases[number].retry_safe))

    victims = [start(number, KillSwitch(case.point)) for number, case in enumerate(cases)]
    killed, heirs = [], []
    for number, victim in enumerate(victims):
        killed.append(wait_for(victim))
        heirs.append(start(number, KillSwitch()))
    drained = [wait_for(heir) for heir in heirs]
    lines = [made.lines_of(queue) for queue in queues]
    results = [*zip(queues, killed, drained, victims, heirs, lines, strict=True)]
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    _main(sys.argv[1:])
