"""Callers that run each operation until its outcome is known, and count its effects (I1, I3, I4).

Every key is run by two engines at once, as by two hosts that got the same request. Whatever happens
to the store, its body must run at most once, and every answer must be the same.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any, Self

from tests.support.servers.processes import wait_until

from oncekey.core.errors import InFlight, OncekeyError, OutcomeUnknown, StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.engine.once import Once

OPERATION = "charge"
ENGINES = 2
_PAUSE_SECONDS = 0.02


class EffectLoad:
    """Threads in pairs; both threads of a pair run the same keys, one after the other."""

    def __init__(self, url: str, *, pairs: int = 4, lease: str = "10s", prefix: str = "k") -> None:
        self.url = url
        self.policy = Policy(lease=lease)
        self.effects: Counter[str] = Counter()
        self.answers: dict[str, set[str]] = {}
        self.unknown: set[str] = set()
        self.errors: Counter[str] = Counter()
        self._prefix = prefix
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._engines = [self.engine() for _ in range(ENGINES)]
        self._threads = [
            threading.Thread(target=self._work, args=(engine, pair))
            for pair in range(pairs)
            for engine in self._engines
        ]

    def engine(self) -> Once:
        return Once(self.url, policy=self.policy, cache=0)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for engine in self._engines:
            engine.close()

    def _work(self, engine: Once, pair: int) -> None:
        for number in itertools.count():
            if not self._run(engine, f"{self._prefix} {pair} {number}"):
                return

    def _run(self, engine: Once, key: str) -> bool:
        """Run one key until its outcome is known; False if the load ends before that."""

        def body(attempt: Any) -> str:
            with self._lock:
                self.effects[key] += 1
                return f"{key} {self.effects[key]} {attempt.fence}"

        while not self._stop.is_set():
            try:
                value = engine.run(OPERATION, key, body).value
            except OutcomeUnknown:
                with self._lock:
                    self.unknown.add(key)
                return True
            except (InFlight, StoreUnavailable) as error:
                with self._lock:
                    self.errors[type(error).__name__] += 1
                time.sleep(_PAUSE_SECONDS)
            except OncekeyError as error:
                with self._lock:
                    self.errors[f"{type(error).__name__}: {error}"] += 1
                return True
            else:
                with self._lock:
                    self.answers.setdefault(key, set()).add(value)
                return True
        return False

    def wait_for(self, more: int, seconds: float = 60) -> None:
        """Wait until that many more keys have an answer."""
        target = len(self.answers) + more
        wait_until(lambda: len(self.answers) >= target, f"{more} keys have an answer", seconds)

    def violations(self) -> list[str]:
        """Run every key with an answer again, on a new engine; return what is wrong."""
        wrong = [f"{key} ran {count} times" for key, count in self.effects.items() if count > 1]
        wrong += [f"{key} has {some}" for key, some in self.answers.items() if len(some) > 1]

        def body(attempt: Any) -> str:
            return "ran again"

        with self.engine() as once:
            for key, answers in self.answers.items():
                again = once.run(OPERATION, key, body)
                if again.value not in answers or not again.replayed:
                    wrong.append(f"{key} had {answers}, now {again.value}")
        expected = {"InFlight", "StoreUnavailable"}
        return wrong + [error for error in self.errors if error not in expected]

    def summary(self) -> str:
        return (
            f"{len(self.answers)} keys answered, {sum(self.effects.values())} effects, "
            f"{len(self.unknown)} unknown, {dict(self.errors)} on the way"
        )
