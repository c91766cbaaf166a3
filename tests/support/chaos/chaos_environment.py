"""The processes of a chaos run: databases, broker, provider, API workers, consumers and clients.

This module starts and ends them and knows how they are connected. What is done to them is in
nemesis.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tests.support.chaos.chaos_clients import (
    ALL_SENT_FILE,
    BEGAN_VARIABLE,
    HEALED_FILE,
    MOVERS_VARIABLE,
    WORKERS_VARIABLE,
)
from tests.support.chaos.chaos_history import FOLDER_VARIABLE, START_VARIABLE, HistoryFile
from tests.support.chaos.chaos_plan import ChaosPlan
from tests.support.chaos.database_pair import DatabasePair
from tests.support.chaos.effect_provider import PORT_VARIABLE
from tests.support.chaos.moved_keys import MovedKeys
from tests.support.chaos.payment_names import (
    BROKER_NAME_VARIABLE,
    BROKER_VARIABLE,
    GRACE_VARIABLE,
    NAME_VARIABLE,
    RABBIT_IN_TASKS,
    RABBIT_QUEUE_VARIABLE,
    RABBIT_VARIABLE,
    REFUSED_EXIT,
    REQUIRE_VARIABLE,
    ROWS_VARIABLE,
    SOURCE_VARIABLE,
    STORE_VARIABLE,
)
from tests.support.servers import Proxy, RedisServer, ServerFailed
from tests.support.servers.processes import fresh_name
from tests.support.servers.rabbitmq_server import RabbitServer
from tests.support.servers.redis_server import DURABLE
from tests.support.servers.server_lifetime import LoopbackServer

ROOT: Final = Path(__file__).parents[3]
GRACEFUL_SECONDS: Final = 5
STOP_SECONDS: Final = 12
# Short, so that a store that is away is noticed soon.
STORE_OPTIONS: Final = "statement_timeout=3s&lock_timeout=1s&pool_timeout=3s&guarantee_interval=1s"


class PythonProcess(LoopbackServer):
    """A Python module as a server process with a name of its own."""

    def __init__(
        self, name: str, folder: Path, arguments: Sequence[str], env: Mapping[str, str]
    ) -> None:
        super().__init__(name, folder)
        self.role = name
        self._arguments = arguments
        self._env = env
        self.listens = True

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", *(part.format(port=self.port) for part in self._arguments)]

    def environment(self) -> Mapping[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.base / "bytecode")}
        return {
            **cache,
            **self._env,
            "PYTHONPATH": path,
            NAME_VARIABLE: self.role,
        }

    def is_ready(self) -> bool:
        if not self.listens:
            return True
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return True
        return False

    @property
    def exit_code(self) -> int | None:
        return self._running().popen.poll()

    @property
    def has_refused(self) -> bool:
        """True if it has ended because of what its store or its broker is at the moment."""
        return self._process is not None and self.exit_code == REFUSED_EXIT

    def terminate(self) -> None:
        """Ask the process to end, without waiting."""
        self._running().send(signal.SIGTERM)

    def relaunch(self) -> None:
        """Start the process again, once a process that was asked to end has done so."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, STOP_SECONDS)
            self._process = None
        self.launch()


class ChaosEnvironment:
    """Everything that runs: `with ChaosEnvironment(plan, folder) as environment:`."""

    def __init__(self, plan: ChaosPlan, folder: Path, rabbitmq: RabbitServer | None = None) -> None:
        """`rabbitmq` is a node that runs; without one the plan's own is started, if it needs one"""
        self.plan = plan
        self.rabbitmq = rabbitmq
        self.parcels = fresh_name("parcels")  # the queue of RabbitMQ
        self.moved: MovedKeys | None = None
        self.movers: list[PythonProcess] = []
        self.folder = folder
        self.start_time = time.monotonic()  # of the history
        self.began = 0.0  # when the plan's time began, in the history's time
        self.database = DatabasePair(
            folder, durable=plan.options.durable, moves_clock=plan.options.jump_seconds > 0
        )
        self.workers: list[PythonProcess] = []
        self.worker_proxies: list[Proxy] = []
        self.consumers: list[PythonProcess] = []
        self._stack = ExitStack()
        self.broker: RedisServer
        self.broker_proxy: Proxy
        self.clients: PythonProcess
        self.history: HistoryFile

    # --- lifetime -------------------------------------------------------------------------------

    def __enter__(self) -> ChaosEnvironment:
        with ExitStack() as stack:
            stack.callback(self.database.close)
            self.database.start()
            self.broker = stack.enter_context(RedisServer(settings=DURABLE))
            self.broker_proxy = stack.enter_context(Proxy(self.broker.port))
            if "parcel" in self.plan.options.levels:
                self._start_rabbitmq(stack)
            provider = self._process("provider", "effect_provider", "{port}")
            stack.enter_context(provider)
            self._provider_port = provider.port
            self._start_servers(stack)
            self._stack = stack.pop_all()
        return self

    def _start_rabbitmq(self, stack: ExitStack) -> None:
        if self.rabbitmq is None:
            self.rabbitmq = stack.enter_context(RabbitServer())
        self.declare_parcels()

    def declare_parcels(self) -> None:
        """Make the queue of RabbitMQ, a classic one."""
        assert self.rabbitmq is not None
        body = {"durable": True, "arguments": {"x-queue-type": "classic"}}
        self.rabbitmq.ask("PUT", f"queues/%2F/{self.parcels}", body)

    def delete_parcels(self) -> None:
        """Delete the queue: RabbitMQ cancels its consumers. Whoever has published what was in it
        publishes it again (`chaos_run`)."""
        assert self.rabbitmq is not None
        self.rabbitmq.ask("DELETE", f"queues/%2F/{self.parcels}")
        self.history.write("parcels deleted")

    def _start_servers(self, stack: ExitStack) -> None:
        for number in range(self.plan.options.workers):
            self.workers.append(self._api(stack, f"worker-{number}", self._variables()))
        if "moved" in self.plan.options.levels:
            self.moved = stack.enter_context(MovedKeys(self.database.address, STORE_OPTIONS))
            for number, url in enumerate(self.moved.urls):
                given = {**self._variables(), STORE_VARIABLE: url}
                self.movers.append(self._api(stack, f"mover-{number}", given))
        for number in range(self.plan.options.consumers):
            self.consumers.append(self.consumer(f"consumer-{number}", "stream", stack))
        if "parcel" in self.plan.options.levels:
            for number in range(self.plan.options.consumers):
                name = f"consumer-{self.plan.options.consumers + number}"
                source = RABBIT_IN_TASKS if number % 2 else "rabbitmq"
                self.consumers.append(self.consumer(name, source, stack))
        for worker in self.workers:
            worker.wait_ready()
            self.worker_proxies.append(stack.enter_context(Proxy(worker.port)))
        for mover in self.movers:
            mover.wait_ready()

    def _api(self, stack: ExitStack, name: str, variables: Mapping[str, str]) -> PythonProcess:
        worker = PythonProcess(
            name,
            self.folder,
            [
                "uvicorn",
                "--host=127.0.0.1",
                "--port={port}",
                "--loop=asyncio",
                "--no-access-log",
                "--log-level=warning",
                f"--timeout-graceful-shutdown={GRACEFUL_SECONDS}",
                "tests.support.chaos.payment_api:app",
            ],
            variables,
        )
        worker.launch()
        stack.callback(worker.close)
        return worker

    def consumer(
        self, name: str, source: str, stack: ExitStack | None = None, broker_name: str = ""
    ) -> PythonProcess:
        """Start a consumer of one of the brokers."""
        command = ["tests.support.chaos.order_consumer"]
        variables = self._variables()
        variables |= {SOURCE_VARIABLE: source, BROKER_NAME_VARIABLE: broker_name}
        consumer = PythonProcess(name, self.folder, command, variables)
        consumer.listens = False
        consumer.launch()
        (stack or self._stack).callback(consumer.close)
        return consumer

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _process(self, name: str, module: str, *arguments: str) -> PythonProcess:
        command = [f"tests.support.chaos.{module}", *arguments]
        return PythonProcess(name, self.folder, command, self._variables())

    def _variables(self) -> dict[str, str]:
        address = self.database.address
        commit = "" if self.plan.options.durable else "&synchronous_commit=off"
        return {
            FOLDER_VARIABLE: str(self.folder),
            START_VARIABLE: repr(self.start_time),
            STORE_VARIABLE: f"{address}&{STORE_OPTIONS}{commit}",
            ROWS_VARIABLE: address,
            BROKER_VARIABLE: f"redis://127.0.0.1:{self.broker_proxy.port}/",
            RABBIT_VARIABLE: self.rabbitmq.url if self.rabbitmq is not None else "",
            RABBIT_QUEUE_VARIABLE: self.parcels,
            REQUIRE_VARIABLE: "at_most_once" if self.plan.options.durable else "best_effort",
            GRACE_VARIABLE: f"{round(self.plan.options.recover_grace_seconds)}s",
            BEGAN_VARIABLE: repr(self.began),
            PORT_VARIABLE: str(getattr(self, "_provider_port", 0)),
            WORKERS_VARIABLE: ",".join(str(proxy.port) for proxy in self.worker_proxies),
            MOVERS_VARIABLE: ",".join(str(mover.port) for mover in self.movers),
        }

    # --- the run --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the clients; the run's time counts from here."""
        self.history = HistoryFile(self.folder, "run", self.start_time)
        self.began = self.history.now()
        path = self.folder / "plan.json"
        path.write_text(json.dumps(self.plan.as_json()), encoding="utf-8")
        self.clients = self._process("clients", "chaos_clients", str(path))
        self.clients.listens = False
        self.clients.launch()
        self._stack.callback(self.clients.close)

    def tell_healed(self) -> None:
        """Let the clients ask what they do not know yet, and then end."""
        (self.folder / HEALED_FILE).touch()

    def restart_refused(self) -> None:
        """Start the consumers again that have refused to run, as the machine they are on does."""
        for consumer in self.consumers:
            if consumer.has_refused:
                consumer.relaunch()

    def clients_ended(self) -> bool:
        if self.clients.is_running:
            return False
        if self.clients.exit_code != 0:
            raise ServerFailed(f"the clients failed\n{self.clients.log}")
        return True

    def have_sent_all(self) -> bool:
        """True once the clients have sent every planned operation: on a slow machine they send
        some of them when the plan's time is over."""
        return (self.folder / ALL_SENT_FILE).exists()

    def stop_what_writes(self) -> None:
        """End clients, API and consumers, each of which ends what it has begun."""
        writers = [self.clients, *self.workers, *self.movers, *self.consumers]
        running = [process for process in writers if process.is_running]
        for process in running:
            process.terminate()
        for process in running:
            process.stop()

    def logs(self) -> str:
        named = [*self.workers, *self.movers, *self.consumers]
        return "\n".join(f"--- {one.role}\n{one.log[-3_000:]}" for one in named)
