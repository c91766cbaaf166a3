"""Many Celery tasks, sent up to three times each, while workers are killed and paused at random.

It draws lots, so it judges safety alone; whether a kill has met a running task is printed.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.celery_workers import effects, loaded, start_worker
from tests.support.servers import processes
from tests.support.servers.processes import Process, wait_until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started

from oncekey import OutcomeUnknown

WAIT_S = 240.0
LOOKS = 50


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    server = require(lambda: started(RedisServer()))
    url = f"redis://127.0.0.1:{server.port}"
    yield {
        "ONCEKEY_TEST_BROKER": f"{url}/0",
        "ONCEKEY_TEST_BACKEND": f"{url}/1",
        "ONCEKEY_TEST_NOTES": f"{url}/2",
        "ONCEKEY_TEST_STORE": f"sqlite:///{tmp_path_factory.mktemp('kills')}/keys.db",
        "ONCEKEY_TEST_WORK_MS": "20",
    }
    server.close()


class Workers:
    def __init__(self, environment: dict[str, str], dice: random.Random, count: int) -> None:
        self._environment = environment
        self._dice = dice
        self._running = [self._start() for _ in range(count)]
        self._paused: list[int] = []

    def _start(self) -> Process:
        return start_worker(self._environment, name=processes.fresh_name("w"), slots=2)

    def strike(self) -> None:
        """Kill a process of a pool or a whole worker, or pause a process until the next strike."""
        self.wake()
        worker = self._dice.choice(self._running)
        children = processes.children_of(worker.pid)
        choice = self._dice.choice(("child", "worker", "pause"))
        if choice == "worker" or not children:
            worker.kill()
            self._running[self._running.index(worker)] = self._start()
        elif choice == "child":
            processes.send_if_there(self._dice.choice(children), signal.SIGKILL)
        else:
            self._paused.append(self._dice.choice(children))
            processes.send_if_there(self._paused[-1], signal.SIGSTOP)

    def wake(self) -> None:
        for pid in self._paused:
            processes.send_if_there(pid, signal.SIGCONT)
        self._paused.clear()

    def stop(self) -> None:
        self.wake()
        for worker in self._running:
            worker.kill()


# Not in `make test`: it also judges that tasks end, which random kills can delay for long.
@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.timeout(WAIT_S * 2)
@pytest.mark.parametrize(("keys", "strikes", "count"), [(12, 2, 2), (500, 30, 3)])
def test_every_task_ends_and_no_effect_is_lost_or_doubled(
    environment: dict[str, str], seed: int, keys: int, strikes: int, count: int
) -> None:
    """I1, I4, I10. Retry-safe tasks all succeed, with one charge each. The others ran once at most;
    those whose worker was killed in the middle are unknown, and say so. There are `keys` tasks of
    each kind, and `count` workers.

    Celery's transport for Redis takes a message from its list, and only then notes that it has it.
    A worker that is killed in between loses the message, guarded or not: that is counted."""
    dice = random.Random(seed)
    with (
        loaded(environment, "tests.queues.celery_app") as tasks,
        tasks.app.connection_for_read() as connection,
    ):
        workers = Workers(environment, dice, count)
        try:
            sent = [
                (task, f"{task}-{number}")
                for task in ("charge", "quick")
                for number in range(keys)
                for _ in range(dice.randint(1, 3))
            ]
            dice.shuffle(sent)
            results = [(name, getattr(tasks, task).delay(name)) for task, name in sent]

            def ended() -> int:
                return sum(result.ready() for _, result in results)

            for strike in range(strikes):
                enough = strike * len(results) // strikes
                wait_until(lambda: ended() >= enough, f"{enough} tasks have ended", WAIT_S)  # noqa: B023
                workers.strike()
            workers.wake()
            broker = connection.default_channel.client

            def is_held() -> bool:
                """A message that is being taken is nowhere for a moment, so this looks often."""
                looks = [broker.llen("celery") or broker.hlen("unacked") for _ in range(LOOKS)]
                return any(looks)

            wait_until(
                lambda: ended() == len(results) or not is_held(),
                "every task has ended that the broker still has",
                WAIT_S,
            )
            wait_until(lambda: not is_held(), "the broker is empty", WAIT_S)
            ends = {name: set[str]() for _, name in sent}
            for name, result in results:
                if result.ready():
                    ends[name].add(
                        "unknown" if isinstance(result.result, OutcomeUnknown) else result.result
                    )
            lost = len(results) - ended()
            print(f"{lost} messages were lost by the broker's client")  # noqa: T201
            assert lost <= strikes * 2, "more than the workers that were killed can have held"
            check(tasks, ends)
        finally:
            workers.stop()


def check(tasks: Any, ends: dict[str, set[str]]) -> None:
    runs = Counter({name: len(effects(tasks, name)) for name in ends})
    charges = {name for name in ends if name.startswith("charge") and ends[name]}
    assert all(ends[name] == {name} for name in charges)
    assert set(tasks.notes.hvals("charged")) >= charges
    assert len(tasks.notes.hvals("charged")) == len(set(tasks.notes.hvals("charged")))
    others = {name for name in ends if name.startswith("quick") and ends[name]}
    assert all(ends[name] in ({name}, {"unknown"}) for name in others)
    assert all(runs[name] == 1 for name in others if ends[name] == {name})
    assert all(runs[name] <= 1 for name in ends if name.startswith("quick"))
    hit = [name for name in ends if runs[name] > 1 or ends[name] == {"unknown"}]
    print(f"{len(hit)} tasks were met by a kill or a pause while they ran")  # noqa: T201
