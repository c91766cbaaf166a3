"""Worker processes: they serve the same API and can be killed. Owns starting and ending them."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from oncekey.demo import DemoFailed
from oncekey.demo.request_log import LoggedRequest, RequestLog
from oncekey.demo.server import HOST

_START_TIMEOUT_SECONDS = 30.0


class Worker:
    """One worker process, which serves the API at `url`."""

    def __init__(self, process: Process, port: int, request_log: RequestLog) -> None:
        self._process = process
        self._request_log = request_log
        self.url = f"http://{HOST}:{port}"
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
        self._request_log.killed(f"worker {self.pid}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                self._request_log.put(LoggedRequest(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # the process was killed in the middle of this line


class Workers:
    """All workers of one demo."""

    def __init__(
        self, *, folder: Path, store_url: str, provider_url: str, request_log: RequestLog
    ) -> None:
        settings = {"folder": str(folder), "store": store_url, "provider": provider_url}
        self._settings = json.dumps(settings).encode() + b"\n"
        self._request_log = request_log
        self._workers: list[Worker] = []
        self._starting: set[asyncio.Task[Worker]] = set()

    async def start(self) -> Worker:
        """Starts a worker. If its caller is cancelled meanwhile, `end` still kills the worker."""
        task = asyncio.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def _start(self) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "oncekey.demo.worker_process"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only us; we kill the worker
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(self._settings)
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), _START_TIMEOUT_SECONDS)
            port = int(json.loads(line)["port"])
        except (TimeoutError, OSError, ValueError) as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise DemoFailed("a worker process did not start") from error
        worker = Worker(process, port, self._request_log)
        self._workers.append(worker)
        return worker

    async def end(self) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)
        for worker in self._workers:
            await worker.kill()
        self._workers.clear()
