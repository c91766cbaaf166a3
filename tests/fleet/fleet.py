"""The fleet as a test sees it: four services behind lossy proxies, a client, and what kills them.

Owns the processes and the proxies, and counts what was done to them. What must hold in the end is
in audit.py.
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
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fleet import common
from tests.support.servers import Gunicorn, HttpServer, Proxy, ServerFailed, Uvicorn
from tests.support.servers.processes import User, launch, tail, wait_until

ROOT = Path(__file__).parents[2]
SHOPPER = "shopper"
VICTIMS = (*common.SERVICES, SHOPPER)
_LOOKS = 200
_STALL_SECONDS = 60


class LossyProxy(Proxy):
    """Loses answers at random: the request has arrived, the client gets a reset. The first one is
    lost in any case; without a `loss`, none is."""

    def __init__(self, port: int, chance: random.Random, loss: float | None) -> None:
        super().__init__(port)
        self._chance = chance
        self._loss = loss
        self._seen = 0
        self.lost = 0

    def wants_to_drop(self, request: bytes) -> bool:
        if self._loss is None or not request.startswith(b"POST "):
            return False
        self._seen += 1
        return self._seen == 1 or self._chance.random() < self._loss

    def count_drop(self) -> None:
        self.lost += 1
        super().count_drop()


class Fleet:
    """`with Fleet(folder, orders=50, seed=7) as fleet:` and then `fleet.sail(kills=10, ...)`."""

    def __init__(
        self,
        folder: Path,
        *,
        orders: int,
        seed: int = 0,
        loss: float | None = 0.08,
        sabotage: str = "",
    ) -> None:
        self.folder = folder
        self.orders = orders
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.cuts = 0
        self.servers: dict[str, HttpServer] = {}
        self.proxies: dict[str, LossyProxy] = {}
        self._loss = loss
        self._env = {"FLEET_FOLDER": str(folder), "FLEET_SABOTAGE": sabotage}
        self._shopper: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in common.SERVICES:  # checkout last, it must know where the others are
                self._serve(name, stack)
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

    def _serve(self, name: str, stack: ExitStack) -> None:
        kind: type[HttpServer] = Gunicorn if name == "payments" else Uvicorn
        server = kind(f"tests.fleet.{name}:app", cwd=ROOT, env=self._env)
        self.servers[name] = stack.enter_context(server)
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

    # --- what goes on ---------------------------------------------------------------------------

    def answered(self) -> int:
        """How many orders the client knows the answers to, about: for pacing only."""
        file = self.folder / "progress"
        return len(set(file.read_text().split())) if file.exists() else 0

    def is_done(self) -> bool:
        assert self._shopper is not None
        code = self._shopper.poll()
        if code not in (None, 0):
            raise ServerFailed(f"the client ended with {code}\n{tail(self.folder / 'log')}")
        return code == 0

    def logs(self) -> str:
        """What everybody said last."""
        said = {name: server.log[-2_000:] for name, server in self.servers.items()}
        said[SHOPPER] = tail(self.folder / "log")
        return "\n".join(f"--- {name}\n{text}" for name, text in said.items())

    def facts(self) -> Counter[str]:
        """How often each thing was decided, in all services."""
        lines = [line for name in common.SERVICES for line in self._facts(name)]
        return Counter(line.split()[0] for line in lines)

    def _facts(self, name: str) -> list[str]:
        file = self.folder / f"{name}.facts"
        return file.read_text().splitlines() if file.exists() else []

    def _is_busy(self, name: str) -> bool:
        """Whether a service has begun something since it was started, and not ended it."""
        running: set[str] = set()
        for kind, _, tag in map(str.split, self._facts(name)):
            if kind == "started":
                running.clear()
            elif kind in ("claimed", "takeover"):
                running.add(tag)
            elif kind in ("finished", "released"):
                running.discard(tag)
        return bool(running)

    # --- what is done to it ---------------------------------------------------------------------

    def sail(self, kills: int, seconds: float) -> None:
        """Kill `kills` times, spread over the voyage, and wait until every order is answered."""
        self.start(SHOPPER)
        end = time.monotonic() + seconds
        for number, victim in enumerate(self._plan(kills), 1):
            mark = number * self.orders / (kills + 1)
            self._wait(mark, end)
            time.sleep(self.chance.uniform(0, 0.2))  # a random moment; nothing hangs on it
            victims = [victim]
            if self.chance.random() < 0.25:
                victims.append(self.chance.choice([name for name in VICTIMS if name != victim]))
            for name in victims:
                self.kill(name)
            for name in victims:
                self.start(name)
            self._cut_something()
        (self.folder / common.LAST).touch()
        self._wait(math.inf, end)

    def _plan(self, kills: int) -> list[str]:
        """Everybody equally often, in random order."""
        plan = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
        self.chance.shuffle(plan)
        return plan

    def _wait(self, mark: float, end: float) -> None:
        """Until so many orders are answered, or all. Where nothing moves, it does not wait long."""
        while not self.is_done() and (known := self.answered()) < mark:
            left = max(0.0, min(end - time.monotonic(), _STALL_SECONDS))
            more = f"more than {known} orders are answered"
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
            self._catch_in_the_act(server)
        server.kill()
        self.kills[name] += 1

    def _catch_in_the_act(self, server: HttpServer) -> None:
        """Stop it in the middle of a checkout: killed then, it leaves one to be taken over."""
        for _ in range(_LOOKS):
            server.signal(signal.SIGSTOP)
            if self._is_busy("checkout"):
                return
            server.signal(signal.SIGCONT)
            time.sleep(self.chance.uniform(0, 0.02))

    def start(self, name: str) -> None:
        if name != SHOPPER:
            self.servers[name].start()
        elif self._shopper is None or self._shopper.poll() == -signal.SIGKILL:
            self._start_shopper()

    def _cut_something(self) -> None:
        """Reset every connection to one of the services, in whatever state they are."""
        proxy = self.proxies[self.chance.choice(common.SERVICES)]
        if self.chance.random() < 0.5 and proxy.connections:
            proxy.cut()
            self.cuts += 1
