"""The fleet: four services behind lossy proxies and a client, which are killed and started again.

This module owns the processes and the proxies, and counts the kills and the lost responses. What
must hold in the end is in audit.py.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fleet import common
from tests.support.servers import Gunicorn, HttpServer, Proxy, ServerFailed, Uvicorn
from tests.support.servers.processes import User, free_port, launch, tail, wait_until

ROOT = Path(__file__).parents[2]
SHOPPER = "shopper"
VICTIMS = (*common.SERVICES, SHOPPER)
_BUSY_CHECKS_MAX = 200
_STALL_SECONDS = 120


class LossyProxy(Proxy):
    """Loses responses at random: the request arrives, and the client gets a reset.

    `loss` is the probability. Responses are lost in any case until one was, unless `loss` is None.
    """

    def __init__(self, port: int, chance: random.Random, loss: float | None) -> None:
        super().__init__(port)
        self._chance = chance
        self._loss = loss
        self.lost = 0

    def wants_to_drop(self, request: bytes) -> bool:
        if self._loss is None or not request.startswith(b"POST "):
            return False
        return not self.lost or self._chance.random() < self._loss

    def count_drop(self) -> None:
        self.lost += 1
        super().count_drop()


class Fleet:
    """One fleet: `with Fleet(folder, orders=50, seed=7) as fleet:`, then `fleet.run(10, 60)`."""

    def __init__(
        self,
        folder: Path,
        *,
        orders: int,
        seed: int = 0,
        loss: float | None = 0.08,
        sabotage: str = "",
        dies: bool = False,
    ) -> None:
        """
        loss       the probability that a response is lost, see LossyProxy
        sabotage   how the fleet is broken, see common.py
        dies       every process kills itself once, at the worst moment: see `die_once`
        """
        self.folder = folder
        self.orders = orders
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.cuts = 0
        self.servers: dict[str, HttpServer] = {}
        self.proxies: dict[str, LossyProxy] = {}
        self._loss = loss
        self._env = {"FLEET_FOLDER": str(folder), "FLEET_SABOTAGE": sabotage}
        self._env |= {"FLEET_DIES": "yes"} if dies else {}
        self._shopper: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    # --- lifetime -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in common.SERVICES:  # checkout is the last: it needs the ports of the others
                self._add(name, stack)
            with ThreadPoolExecutor(len(self.servers)) as pool:
                list(pool.map(lambda server: server.start(), self.servers.values()))
            stack.callback(self._stop_shopper)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _add(self, name: str, stack: ExitStack) -> None:
        kind: type[HttpServer] = Gunicorn if name == "payments" else Uvicorn
        server = kind(f"tests.fleet.{name}:app", cwd=ROOT, env=self._env)
        server.port = free_port()
        self.servers[name] = server
        stack.callback(server.close)
        stack.callback(server.kill)  # comes first: nobody waits for what still runs
        chance = random.Random(self.chance.random())
        proxy = LossyProxy(server.port, chance, self._loss)
        self.proxies[name] = stack.enter_context(proxy)
        self._env[f"FLEET_{name.upper()}"] = str(proxy.port)

    def _start_shopper(self) -> None:
        command = [sys.executable, "-m", "tests.fleet.shopper", str(self.orders)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = {**self._env, "PYTHONPATH": path.rstrip(os.pathsep)}
        self._shopper = launch(
            SHOPPER, command, User(), self.folder, death_signal="SIGKILL", env=env
        ).popen

    def _stop_shopper(self) -> None:
        if self._shopper is not None:
            self._shopper.kill()
            self._shopper.wait()

    # --- observation ----------------------------------------------------------------------------

    def answered(self) -> int:
        """Return about how many orders have a response; this is for pacing only."""
        file = self.folder / "progress"
        return len(set(file.read_text().split())) if file.exists() else 0

    def is_done(self) -> bool:
        assert self._shopper is not None
        code = self._shopper.poll()
        if code not in (None, 0):
            raise ServerFailed(f"the client ended with {code}\n{tail(self.folder / 'log')}")
        return code == 0

    def logs(self) -> str:
        """Return the ends of all logs."""
        logs = {name: server.log[-2_000:] for name, server in self.servers.items()}
        logs[SHOPPER] = tail(self.folder / "log")
        return "\n".join(f"--- {name}\n{text}" for name, text in logs.items())

    def event_counts(self, *services: str) -> Counter[str]:
        """Return how often each kind of event happened, in all services or in those given."""
        lines = [line for name in services or common.SERVICES for line in self._events(name)]
        return Counter(line.split()[0] for line in lines)

    def _events(self, name: str) -> list[str]:
        file = self.folder / f"{name}.events"
        return file.read_text().splitlines() if file.exists() else []

    def is_busy(self, name: str) -> bool:
        """True if an operation of a service has begun since its start, and has not ended."""
        running: set[str] = set()
        for kind, _, tag in map(str.split, self._events(name)):
            if kind == "started":
                running.clear()
            elif kind in ("claimed", "takeover"):
                running.add(tag)
            elif kind in ("finished", "released"):
                running.discard(tag)
        return bool(running)

    # --- faults -------------------------------------------------------------------------------

    def run(self, kills: int, seconds: float) -> None:
        """Place all orders, kill `kills` times meanwhile, and wait for every response."""
        self.start(SHOPPER)
        end = time.monotonic() + seconds
        for number, victim in enumerate(self._plan(kills), 1):
            threshold = number * self.orders / (kills + 1)
            self._wait(threshold, end)
            time.sleep(self.chance.uniform(0, 0.2))  # the moment is random; no result depends on it
            victims = [victim]
            if self.chance.random() < 0.25:
                victims.append(self.chance.choice([name for name in VICTIMS if name != victim]))
            for name in victims:
                self.kill(name)
            for name in victims:
                self.start(name)
            self._maybe_cut_connections()
        (self.folder / common.LAST_ORDER_FILE).touch()
        self._wait(math.inf, end)

    def wait_with_restarts(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until the condition holds, and start each process again that has ended."""

        def holds() -> bool:
            for name, server in self.servers.items():
                if not server.is_running:
                    self.start(name)
            self.start(SHOPPER)
            return condition()

        wait_until(holds, what, seconds)

    def _plan(self, kills: int) -> list[str]:
        """Return whom to kill: each process equally often, in random order."""
        plan = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
        self.chance.shuffle(plan)
        return plan

    def _wait(self, threshold: float, end: float) -> None:
        """Wait until that many orders have a response, or all; fail early when none comes."""
        while not self.is_done() and (known := self.answered()) < threshold:
            left = max(0.0, min(end - time.monotonic(), _STALL_SECONDS))
            more = f"more than {known} orders have a response"
            wait_until(partial(self._is_past, known), more, left)

    def _is_past(self, known: int) -> bool:
        return self.is_done() or self.answered() > known

    def kill(self, name: str) -> None:
        if name == SHOPPER:
            if not self.is_done():
                self._stop_shopper()
                self.kills[name] += 1
            return
        server = self.servers[name]
        if name == "checkout":
            self._stop_when_busy(server)
        server.kill()
        self.kills[name] += 1

    def _stop_when_busy(self, server: HttpServer) -> None:
        """Stop a server in the middle of an operation, so that its kill leads to a takeover."""
        for _ in range(_BUSY_CHECKS_MAX):
            server.signal(signal.SIGSTOP)
            if self.is_busy("checkout"):
                return
            server.signal(signal.SIGCONT)
            time.sleep(self.chance.uniform(0, 0.02))

    def start(self, name: str) -> None:
        if name != SHOPPER:
            self.servers[name].start()
        elif self._shopper is None or self._shopper.poll() == -signal.SIGKILL:
            self._start_shopper()

    def _maybe_cut_connections(self) -> None:
        """Reset all connections to a random service, half of the time."""
        proxy = self.proxies[self.chance.choice(common.SERVICES)]
        if self.chance.random() < 0.5 and proxy.connections:
            proxy.cut()
            self.cuts += 1
