"""Worker processes, which can be killed: some serve the same API, others consume queues of orders.

Owns starting and ending them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from oncekey.demo import DemoFailed
from oncekey.demo.handlers import Handler
from oncekey.demo.request_log import RUNNING, LoggedRequest, RequestLog
from oncekey.demo.server import HOST

_START_TIMEOUT_SECONDS = 30.0
_END_TIMEOUT_SECONDS = 30.0


class Worker:
    """One worker process. One that serves the API does so at `url`."""

    def __init__(
        self, process: Process, what: str, port: int | None, request_log: RequestLog
    ) -> None:
        self._process = process
        self._what = what
        self._request_log = request_log
        self._ended: asyncio.Queue[LoggedRequest | None] = asyncio.Queue()
        self.url = "" if port is None else f"http://{HOST}:{port}"
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone; does nothing the second time."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
        self._request_log.killed(f"{self._what} {self.pid}")

    async def next_ended(self) -> LoggedRequest:
        """Waits for the next request, or delivery of a message, that this process is done with."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_SECONDS):
                ended = await self._ended.get()
        except TimeoutError:
            raise DemoFailed(f"{self._what} {self.pid} does nothing") from None
        if ended is None:
            raise DemoFailed(f"{self._what} {self.pid} has ended")
        return ended

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                request = LoggedRequest(**json.loads(line))
            except (ValueError, TypeError):
                continue  # the process was killed in the middle of this line
            self._request_log.put(request)
            if request.got != RUNNING:
                self._ended.put_nowait(request)
        self._ended.put_nowait(None)


class Workers:
    """All workers of one demo."""

    def __init__(
        self, *, folder: Path, store_url: str, provider_url: str, request_log: RequestLog
    ) -> None:
        self._settings = {"folder": str(folder), "store": store_url, "provider": provider_url}
        self._request_log = request_log
        self._workers: list[Worker] = []
        self._starting: set[asyncio.Task[Worker]] = set()

    async def start(self) -> Worker:
        """Starts a worker that serves the API."""
        return await self._start("worker", "oncekey.demo.worker_process", {})

    async def start_consumer(self, queue: str, handler: Handler) -> Worker:
        """Starts a consumer of this queue of orders."""
        settings = {"queue": queue, "handler": handler}
        return await self._start("consumer", "oncekey.demo.shipping.consumer_process", settings)

    async def _start(self, what: str, module: str, settings: dict[str, str]) -> Worker:
        """If its caller is cancelled meanwhile, `end` still kills the process."""
        task = asyncio.create_task(self._launch(what, module, settings))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def _launch(self, what: str, module: str, settings: dict[str, str]) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only us; we kill the worker
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(self._settings | settings).encode() + b"\n")
            await process.stdin.drain()
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                line = await process.stdout.readline()
            port = json.loads(line).get("port")
        except (TimeoutError, OSError, ValueError) as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise DemoFailed(f"a {what} process did not start") from error
        worker = Worker(process, what, port, self._request_log)
        self._workers.append(worker)
        return worker

    async def end(self) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)
        for worker in self._workers:
            await worker.kill()
        self._workers.clear()
