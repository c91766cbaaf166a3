"""A guarded ASGI app runs in the attempt's task. Its last `send` stores the outcome, and what the
app does after that goes on in the same task, which is then no attempt's any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.http.asgi_requests import guard, send_request

from oncekey import AsyncOnce
from oncekey.core.commands import Finish
from oncekey.stores.memory import AsyncMemoryStore


class SlowFinish:
    """A memory store whose finishes wait until `go` is set; `begun` is set when one waits."""

    immediate = False
    max_in_flight = 1

    def __init__(self) -> None:
        self._store = AsyncMemoryStore()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, commands: Any) -> Any:
        if any(isinstance(command, Finish) for command in commands):
            self.begun.set()
            await self.go.wait()
        return await self._store.apply(commands)


async def _respond(send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("in_own_task", [False, True])
def test_what_follows_the_response_waits_for_its_outcome_also_when_cancelled(
    in_own_task: bool,
) -> None:
    """The app cancels its own `send` while the outcome is being stored: it is stored all the same,
    and only then the cancellation arrives."""

    async def main() -> None:
        store = SlowFinish()
        events: list[str] = []
        sending: list[asyncio.Task[Any]] = []

        async def respond(send: Any) -> None:
            sending.append(asyncio.current_task())  # type: ignore[arg-type]
            try:
                await _respond(send)
            except asyncio.CancelledError:
                events.append("cancelled")
                raise

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if in_own_task:
                await asyncio.wait({asyncio.create_task(respond(send))})
            else:
                await respond(send)
            events.append("background")

        once = AsyncOnce(store)
        guarded = guard(app, once=once)
        request = asyncio.create_task(send_request(guarded))
        await store.begun.wait()
        sending[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert events == [], "nothing follows before the outcome is durable"
        assert not request.done()
        store.go.set()
        await asyncio.wait({request})
        expected = ["cancelled", "background"] if in_own_task else ["cancelled"]
        assert events == expected
        again = await send_request(guarded)
        assert again.body == b"ok"
        assert events == expected, "a replay"
        await once.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_closing_the_engine_neither_waits_for_background_tasks_nor_cancels_them() -> None:
    async def main() -> None:
        stored, go = asyncio.Event(), asyncio.Event()
        events: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await _respond(send)
            stored.set()
            try:
                await go.wait()
            finally:
                events.append("went on" if go.is_set() else "was cancelled")

        once = AsyncOnce("memory://")
        guarded = guard(app, once=once)
        request = asyncio.create_task(send_request(guarded))
        await stored.wait()
        await once.close(drain="30s")
        assert events == []
        go.set()
        await request
        assert events == ["went on"]
        assert not guarded.tasks.background

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_app_has_the_attempts_task_and_no_other() -> None:
    async def main() -> None:
        tasks: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            tasks.append((asyncio.current_task(), len(asyncio.all_tasks())))
            await _respond(send)
            await asyncio.sleep(0)
            tasks.append((asyncio.current_task(), len(asyncio.all_tasks())))

        before = len(asyncio.all_tasks())
        await send_request(guard(app))
        (first, count), (last, _) = tasks
        assert first is last
        assert count == before + 1

    asyncio.run(main())
