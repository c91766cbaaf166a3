"""Costly comparisons of one caller never hurt another: one thread, callers in turn, a limit."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from fastapi import FastAPI
from tests.http.asgi_requests import CountingApp, send_request

from oncekey import AsyncOnce
from oncekey.http import exchange
from oncekey.http.asgi import IdempotencyMiddleware, comparison_queue
from oncekey.http.asgi.comparison_queue import ComparisonQueue, TooManyWaiting
from oncekey.http.fastapi import install
from oncekey.http.request_fingerprint import fingerprint_bytes
from oncekey.testing.sync_facade import yield_until

WAIT_SECONDS = 30


class Gate:
    """Holds the queue's thread in one comparison, and notes which are made, in order."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.made: list[str] = []

    def hold(self) -> str:
        self.entered.set()
        assert self.opened.wait(WAIT_SECONDS)
        return "held"

    def note(self, name: str) -> Callable[[], str]:
        def call() -> str:
            self.made.append(name)
            return name

        return call

    async def has_been_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, WAIT_SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


async def started(*calls: Any) -> list[asyncio.Task[Any]]:
    """Tasks that have come as far as their first wait."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


def test_callers_are_served_in_turn_and_one_at_a_time(gate: Gate) -> None:
    async def main() -> None:
        queue = ComparisonQueue()
        held = await started(queue.run("busy", gate.hold))
        await gate.has_been_entered()
        names = ["busy-1", "busy-2", "busy-3", "other-1", "other-2", "third-1"]
        calls = [queue.run(name.partition("-")[0], gate.note(name)) for name in names]
        waiting = await started(*calls)
        assert gate.made == []  # the one thread is held
        gate.opened.set()
        assert await asyncio.gather(*held, *waiting) == ["held", *names]
        assert gate.made == ["busy-1", "other-1", "third-1", "busy-2", "other-2", "busy-3"]

    asyncio.run(main())


def test_two_event_loops_share_the_one_thread(gate: Gate) -> None:
    queue = ComparisonQueue()

    async def main() -> None:
        held = await started(queue.run("a", gate.hold))
        await gate.has_been_entered()
        thread = threading.Thread(target=lambda: asyncio.run(queue.run("b", gate.note("b"))))
        thread.start()
        gate.opened.set()
        await asyncio.gather(*held)
        await asyncio.to_thread(thread.join, WAIT_SECONDS)
        assert gate.made == ["b"]

    asyncio.run(main())


def test_caller_with_too_many_waiting_is_refused_and_others_are_not(gate: Gate) -> None:
    async def main() -> None:
        queue = ComparisonQueue(most=2)
        tasks = await started(queue.run("busy", gate.hold))
        await gate.has_been_entered()
        tasks += await started(*[queue.run("busy", gate.note("busy")) for _ in range(2)])
        with pytest.raises(TooManyWaiting):
            await asyncio.wait_for(queue.run("busy", gate.note("one too many")), WAIT_SECONDS)
        tasks += await started(queue.run("other", gate.note("other")))
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert gate.made == ["busy", "other", "busy"]
        assert await queue.run("busy", gate.note("later")) == "later"

    asyncio.run(main())


def test_comparison_of_a_client_that_has_gone_is_left_out(gate: Gate) -> None:
    async def main() -> None:
        queue = ComparisonQueue()
        held = await started(queue.run("a", gate.hold))
        await gate.has_been_entered()
        gone, stays = await started(
            queue.run("a", gate.note("gone")), queue.run("a", gate.note("stays"))
        )
        gone.cancel()
        await asyncio.wait([gone])
        gate.opened.set()
        await asyncio.gather(*held, stays)
        assert gate.made == ["stays"]

    asyncio.run(main())


def test_error_of_a_comparison_is_its_callers_and_the_next_one_is_made() -> None:
    def fail() -> None:
        raise ValueError("mine")

    async def main() -> None:
        queue = ComparisonQueue()
        with pytest.raises(ValueError, match="mine"):
            await queue.run("a", fail)
        assert await queue.run("a", lambda: 7) == 7

    asyncio.run(main())


def test_comparison_sees_the_context_of_its_request() -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def main() -> None:
        variable.set("mine")
        assert await ComparisonQueue().run("a", variable.get) == "mine"

    asyncio.run(main())


def test_thread_ends_when_nothing_comes_and_another_one_takes_over() -> None:
    queue = ComparisonQueue(idle_seconds=0)
    threads: list[threading.Thread] = []

    def note() -> None:
        threads.append(threading.current_thread())

    for _ in range(2):
        asyncio.run(queue.run("a", note))
        threads[-1].join(WAIT_SECONDS)
        assert not threads[-1].is_alive()
    assert threads[0] is not threads[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_has_a_thread_of_its_own(gate: Gate) -> None:
    async def main() -> None:
        tasks = await started(comparison_queue.COMPARISONS.run("a", gate.hold))
        await gate.has_been_entered()
        child = os.fork()
        if not child:
            os._exit(_compared_in_child())
        gate.opened.set()
        await asyncio.gather(*tasks)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    asyncio.run(main())


def _compared_in_child() -> int:
    """0 if a comparison is made. Without asyncio, whose loop the parent is in."""
    done = threading.Event()
    work = comparison_queue._Work(copy_context(), done.set, Future())
    comparison_queue.COMPARISONS._add("b", work)
    return 0 if done.wait(WAIT_SECONDS) else 1


# --- under HTTP -----------------------------------------------------------------------------------


def caller_of(scope: Any) -> str:
    found: bytes = dict(scope["headers"])[b"x-caller"]
    return found.decode()


def asgi_app(once: AsyncOnce) -> Any:
    return IdempotencyMiddleware(CountingApp(), once, caller=caller_of)


def fastapi_app(once: AsyncOnce) -> Any:
    app = FastAPI()
    install(app, once, caller=caller_of)

    @app.post("/charges", status_code=201)
    async def charge() -> dict[str, int]:
        return {"charge": 1}

    return app


async def send(app: Any, caller: str, key: str, *, packed: bool) -> Any:
    headers = [
        (b"idempotency-key", key.encode()),
        (b"x-caller", caller.encode()),
        (b"content-type", b"application/json"),
    ]
    body = b'{"cents":500}'
    if packed:
        headers.append((b"content-encoding", b"gzip"))
        body = gzip.compress(body)
    return await send_request(app, body=body, headers=headers)


@pytest.mark.parametrize("make", [asgi_app, fastapi_app])
def test_others_are_answered_while_a_caller_has_more_than_it_may(
    make: Callable[[AsyncOnce], Any], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_queue, "COMPARISONS", ComparisonQueue(most=2))

    def held(*arguments: Any) -> bytes:
        if threading.current_thread().name == "oncekey-comparisons":
            gate.hold()
        return fingerprint_bytes(*arguments)

    monkeypatch.setattr(exchange, "fingerprint_bytes", held)

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            app = make(once)
            first = await started(send(app, "busy", "k0", packed=True))
            await gate.has_been_entered()
            waiting = [
                asyncio.ensure_future(send(app, "busy", f"k{n}", packed=True)) for n in (1, 2)
            ]
            queue = comparison_queue.COMPARISONS
            await yield_until(lambda: len(queue._waiting.get("busy", ())) == 2)
            refused = await asyncio.wait_for(send(app, "busy", "k3", packed=True), WAIT_SECONDS)
            assert refused.statuses == [503]
            assert (b"retry-after", b"1") in refused.headers
            assert b"wait to be compared" in refused.body
            small = await send(app, "bystander", "k", packed=False)
            assert small.statuses == [201]
            costly = await started(send(app, "bystander", "k2", packed=True))
            gate.opened.set()
            for answer in await asyncio.gather(*first, *waiting, *costly):
                assert answer.statuses == [201]
            again = await send(app, "busy", "k3", packed=True)
            assert again.statuses == [201]

    asyncio.run(main())
