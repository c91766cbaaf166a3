"""A guarded ASGI app runs in the attempt's task. The outcome is stored when its call has ended, or
when background tasks begin: these go on in the same task, which is then no attempt's any more."""

from __future__ import annotations

import asyncio
import types
from contextlib import suppress
from typing import Any

import anyio
import pytest
from starlette.background import BackgroundTask
from starlette.responses import Response
from tests.http.asgi_requests import guard, send_request

from oncekey import AsyncOnce, current_attempt
from oncekey.core.commands import Finish
from oncekey.core.errors import StoreUnavailable
from oncekey.http.rules import Rule
from oncekey.http.stored_responses import IncompleteResponse
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


def _as_framework(app: Any) -> Any:
    """The app as if it were a function of Starlette's own, after which nothing commits."""
    names = {**app.__globals__, "__name__": "starlette.responses"}
    return types.FunctionType(app.__code__, names, closure=app.__closure__)


async def _nothing() -> None:
    return


def _with_background(task: Any) -> Response:
    """A response as an app, whose background task this is."""
    return Response(b"ok", 201, background=BackgroundTask(task))


def test_a_background_task_waits_for_the_outcome_also_when_cancelled() -> None:
    """The app's task is cancelled while the outcome is being stored: it is stored all the same, and
    only then the cancellation arrives."""

    async def main() -> None:
        store = SlowFinish()
        events: list[str] = []

        async def background() -> None:
            events.append("background")

        once = AsyncOnce(store)
        guarded = guard(_with_background(background), once=once)
        request = asyncio.create_task(send_request(guarded))
        await store.begun.wait()
        (task,) = once._runner.loop_state().tasks
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert events == [], "nothing follows before the outcome is durable"
        assert not request.done()
        store.go.set()
        await asyncio.wait({request})
        assert events == []
        again = await send_request(guarded)
        assert again.body == b"ok"
        assert events == [], "a replay"
        await once.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("in_own_task", [False, True])
def test_i16_the_outcome_waits_for_what_an_app_does_after_its_response(in_own_task: bool) -> None:
    async def main() -> None:
        go = asyncio.Event()
        events: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if in_own_task:
                await asyncio.create_task(_respond(send))
            else:
                await _respond(send)
            await go.wait()
            events.append("committed")

        guarded = guard(app)
        request = asyncio.create_task(send_request(guarded))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not request.done()
        assert (await send_request(guarded)).statuses == [409]
        go.set()
        assert (await request).body == b"ok"
        assert (await send_request(guarded)).body == b"ok"
        assert events == ["committed"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_i16_a_cancellation_after_the_response_ends_the_attempt() -> None:
    """Whatever was to follow, such as a commit, has not happened."""

    async def main() -> None:
        runs: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            runs.append("began")
            await _respond(send)
            this_task = asyncio.current_task()
            assert this_task is not None
            if len(runs) == 1:
                this_task.cancel()
            await asyncio.sleep(0)
            runs.append("ended")

        guarded = guard(app, Rule(retry_safe=True))
        with pytest.raises(asyncio.CancelledError):
            await send_request(guarded)
        assert runs == ["began"]
        assert (await send_request(guarded)).body == b"ok"
        assert runs == ["began", "began", "ended"], "it ran again"

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
    """A cancel scope of anyio cancels in every iteration of the loop until the task gives way."""

    async def main() -> None:
        store = FailingFinish()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            with anyio.CancelScope() as timeout:
                timeouts.append(timeout)
                await _with_background(_nothing)(scope, receive, send)

        timeouts: list[anyio.CancelScope] = []
        guarded = guard(_as_framework(app), once=AsyncOnce(store))
        request = asyncio.create_task(send_request(guarded))
        await store.begun.wait()
        timeouts[0].cancel()
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
            await _with_background(ended.wait)(scope, receive, send)

        once = AsyncOnce(store)
        request = asyncio.create_task(send_request(guard(_as_framework(app), once=once)))
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

        async def background() -> None:
            stored.set()
            try:
                await go.wait()
            finally:
                events.append("went on" if go.is_set() else "was cancelled")

        once = AsyncOnce("memory://")
        guarded = guard(_with_background(background), once=once)
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
