"""Workers: child processes that serve the API, and can be killed. Owns their whole life."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from oncekey.demo.errors import DemoFailed
from oncekey.demo.feed import Feed, Seen
from oncekey.demo.serving import HOST

_PATIENCE_SECONDS = 30.0


class Worker:
    """One of them, serving at `url`."""

    def __init__(self, process: Process, port: int, feed: Feed) -> None:
        self._process = process
        self._feed = feed
        self.url = f"http://{HOST}:{port}"
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone. A second time does nothing."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening
        self._feed.killed(f"worker {self.pid}")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                self._feed.put(Seen(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # the half line of one that was killed while it wrote


class Crew:
    """All workers of one demo."""

    def __init__(self, *, folder: Path, store_url: str, provider_url: str, feed: Feed) -> None:
        told = {"folder": str(folder), "store": store_url, "provider": provider_url}
        self._told = json.dumps(told).encode() + b"\n"
        self._feed = feed
        self._workers: list[Worker] = []
        self._starting: set[asyncio.Task[Worker]] = set()

    async def start(self) -> Worker:
        """Whoever stops waiting for it leaves a worker that `end` knows of."""
        task = asyncio.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def _start(self) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "oncekey.demo.worker"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for us; we then kill it
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(self._told)
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_SECONDS)
            port = int(json.loads(line)["port"])
        except (TimeoutError, OSError, ValueError) as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise DemoFailed("a worker process did not start") from error
        worker = Worker(process, port, self._feed)
        self._workers.append(worker)
        return worker

    async def end(self) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)
        for worker in self._workers:
            await worker.kill()
        self._workers.clear()
