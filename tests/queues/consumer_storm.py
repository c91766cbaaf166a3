"""Three consumers of one queue, killed and paused at random, with duplicates: for every broker.

python -m tests.queues.consumer_storm <module:class> <arguments> <store url> <kind> <folder> <plan>

`storm` runs it; consumer_kills.py has what it is made of. A kill is SIGKILL, and a new consumer
follows. A pause is SIGSTOP for longer than the lease, so that the paused one wakes up as a zombie
whose messages others have. Duplicates are messages of the same order that are sent again, so that
the broker takes them for new ones.

It draws lots, so it judges safety alone: nothing is lost, and nothing runs again after its outcome
is stored. Which kills and pauses met a handler at work is luck, and is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.queues.consumer_kills import (
    QueueUnderTest,
    Work,
    body_of,
    fork,
    run_harness,
    wait_for,
)
from tests.queues.effect_log import Effects
from tests.queues.kill_switch import KillSwitch
from tests.support.servers import processes

LEASE: Final = "2s"
PAUSE_SECONDS: Final = 2.5  # longer than the lease
_BETWEEN_SECONDS: Final = (0.2, 0.8)


class Plan(NamedTuple):
    """How large a storm is, how long it may take at most and how long a handler does. The seed
    chooses the victims and the moments, which a busy machine moves about."""

    messages: int
    duplicates: int
    kills: int
    pauses: int
    consumers: int = 3
    seconds: float = 240
    handler_seconds: float = 0.2


SHORT: Final = Plan(messages=40, duplicates=10, kills=2, pauses=1)


class StormResult(NamedTuple):
    """How the consumers ended that were not killed, how many were killed and paused, and what is in
    the log of effects."""

    ended: list[int]
    kills: int
    pauses: int
    lines: list[str]

    def check(self, plan: Plan) -> None:
        """Check that the queue was drained, and that what was done is safe."""
        assert set(self.ended) == {0}, f"consumers ended with {self.ended}"
        effects = Effects(self.lines)
        effects.check({str(number) for number in range(plan.messages)})
        repeated = len(effects.all) - plan.messages
        print(f"{self.kills} kills, {self.pauses} pauses, {repeated} effects repeated")  # noqa: T201


def storm(
    queue_class: type[QueueUnderTest],
    arguments: dict[str, Any],
    store: str,
    directory: Path,
    plan: Plan,
    seed: int,
    *,
    kind: str = "sync",
) -> StormResult:
    """Run a storm on one queue; `kind` is sync or async."""
    module = "tests.queues.consumer_storm"
    what, seconds = [plan, seed], plan.seconds + 40
    found = run_harness(queue_class, arguments, store, kind, directory, what, seconds, module)
    return StormResult(*found)


class _SlowSwitch(KillSwitch):
    """Kills nothing, and makes a handler last, so that kills and pauses meet it at work."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def at(self, point: str) -> None:
        if point in ("before effect", "after effect"):
            time.sleep(self._seconds / 2)


class _Storm:
    """The parent of the consumers: it forks, kills and pauses them."""

    def __init__(self, work: Work, plan: Plan, seed: int) -> None:
        self.work = work
        self.plan = plan
        self.queue = processes.fresh_name(f"storm-{work.kind}")
        self.random = random.Random(seed)
        self.running: set[int] = set()
        self.paused: dict[int, float] = {}
        self.ended: list[int] = []
        self.kills = self.pauses = 0

    def run(self) -> None:
        orders = [*range(self.plan.messages)]
        orders += self.random.sample(orders, self.plan.duplicates)
        self.random.shuffle(orders)
        bodies = [body_of(number) for number in orders]
        assert wait_for(fork(lambda: self.work.queues.send(self.queue, []))) == 0
        sender = fork(lambda: self.work.send(self.queue, bodies))
        for _ in range(self.plan.consumers):
            self.start()
        while self.running:
            until = time.monotonic() + self.random.uniform(*_BETWEEN_SECONDS)
            while self.running and time.monotonic() < until:
                self.resume()
                self.reap()
                time.sleep(0.05)
            self.do_harm()
        assert wait_for(sender) == 0

    def start(self) -> None:
        switch = _SlowSwitch(self.plan.handler_seconds)
        options: dict[str, Any] = {"seconds": self.plan.seconds, "lease": LEASE}
        self.running.add(fork(lambda: self.work.consume(self.queue, switch, **options)))

    def do_harm(self) -> None:
        """Kill or pause one of the consumers, as long as the plan has it."""
        awake = sorted(self.running - self.paused.keys())
        if not awake:
            return
        victim = self.random.choice(awake)
        if self.kills < self.plan.kills and (self.kills <= self.pauses or self.no_more_pauses()):
            os.kill(victim, signal.SIGKILL)
            self.running.remove(victim)
            code = wait_for(victim)
            if code == -signal.SIGKILL:
                self.kills += 1
                self.start()
            else:
                self.ended.append(code)  # it was done before the signal came
        elif not self.no_more_pauses():
            self.pauses += 1
            os.kill(victim, signal.SIGSTOP)
            self.paused[victim] = time.monotonic() + PAUSE_SECONDS

    def no_more_pauses(self) -> bool:
        return self.pauses >= self.plan.pauses

    def resume(self) -> None:
        for pid, until in list(self.paused.items()):
            if time.monotonic() >= until:
                del self.paused[pid]
                os.kill(pid, signal.SIGCONT)

    def reap(self) -> None:
        for pid in sorted(self.running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.running.remove(pid)
                self.ended.append(os.waitstatus_to_exitcode(status))


def _main(arguments: Sequence[str]) -> None:
    work, (plan, seed) = Work.of(arguments), json.loads(arguments[5])
    storm = _Storm(work, Plan(*plan), seed)
    storm.run()
    lines = work.lines_of(storm.queue)
    sys.stdout.write(json.dumps([storm.ended, storm.kills, storm.pauses, lines]))


if __name__ == "__main__":
    _main(sys.argv[1:])
