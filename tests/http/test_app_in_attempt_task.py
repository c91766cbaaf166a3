"""A guarded ASGI app runs in the attempt's task. Its last `send` stores the outcome, and what the
app does after that goes on in the same task, which is then no attempt's any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import pytest
from tests.http.asgi_requests import guard, send_request

from oncekey import AsyncOnce, current_attempt
from oncekey.core.commands import Finish
from oncekey.core.errors import StoreUnavailable
from oncekey.http.outcomes import IncompleteResponse
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

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancellation_that_waits_when_the_last_part_is_sent_is_not_lost() -> None:
    async def main() -> None:
        store = SlowFinish()
        store.go.set()
        events: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            this_task = asyncio.current_task()
            assert this_task is not None
            this_task.cancel()
            await _respond(send)
            events.append("went on")

        guarded = guard(app, once=AsyncOnce(store))
        with pytest.raises(asyncio.CancelledError):
            await send_request(guarded)
        assert events == []
        assert (await send_request(guarded)).body == b"ok", "its outcome is stored all the same"

    asyncio.run(asyncio.wait_for(main(), 60))


class FailingFinish(SlowFinish):
    """A store that is unavailable for finishes until `go` is set; counts them."""

    finishes = 0

    async def apply(self, commands: Any) -> Any:
        if any(isinstance(command, Finish) for command in commands):
            self.finishes += 1
            self.begun.set()
            if not self.go.is_set():
                raise StoreUnavailable("no answer", ambiguous=True)
        return await self._store.apply(commands)


def test_a_scope_that_cancels_again_and_again_does_not_hurry_the_tries_to_store() -> None:
    """Starlette's StreamingResponse cancels its `send` when the response is complete, by a cancel
    scope of anyio, which cancels in every iteration of the loop until the task gives way."""

    async def main() -> None:
        store = FailingFinish()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(_respond, send)
                await store.begun.wait()
                group.cancel_scope.cancel()

        guarded = guard(app, once=AsyncOnce(store))
        request = asyncio.create_task(send_request(guarded))
        await store.begun.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert store.finishes < 20
        store.go.set()
        assert (await request).body == b"ok"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_response_that_is_sent_in_the_body_of_another_run_leaves_that_run_as_it_was() -> None:
    async def main() -> None:
        store = SlowFinish()
        store.go.set()
        once = AsyncOnce(store)
        seen: list[bool] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def body(attempt: Any) -> None:
                await _respond(send)
                seen.append(current_attempt() is attempt)
                seen.append(asyncio.current_task() in once._runner.loop_state().tasks)

            await once.run("ship", "k", body)

        await send_request(guard(app, once=once))
        assert seen == [True, True], "it is current, and a drain waits for it"
        assert not once._runner.loop_state().tasks

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_task_that_responds_after_the_apps_end_changes_nothing() -> None:
    async def main() -> None:
        left_behind: list[asyncio.Task[None]] = []
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def respond() -> None:
                await go.wait()
                await _respond(send)

            left_behind.append(asyncio.create_task(respond()))

        guarded = guard(app)
        with pytest.raises(IncompleteResponse):
            await send_request(guarded)
        go.set()
        await left_behind[0]
        assert not guarded.tasks.background

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_drain_waits_for_an_outcome_and_not_for_what_follows_it(seconds: float) -> None:
    """With 0 seconds the response is the app's answer to being cancelled by the drain."""

    async def main() -> None:
        began, ended = asyncio.Event(), asyncio.Event()
        store = SlowFinish()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            began.set()
            with suppress(asyncio.CancelledError):
                await (asyncio.sleep(0) if seconds else ended.wait())
            await _respond(send)
            await ended.wait()

        once = AsyncOnce(store)
        request = asyncio.create_task(send_request(guard(app, once=once)))
        await (store.begun if seconds else began).wait()
        draining = asyncio.create_task(once.drain(seconds))
        await asyncio.sleep(0)  # its first step
        await store.begun.wait()
        store.go.set()
        await draining
        assert not request.done()
        ended.set()
        assert (await request).body == b"ok"

    asyncio.run(asyncio.wait_for(main(), 60))


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

    asyncio.run(asyncio.wait_for(main(), 60))


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
