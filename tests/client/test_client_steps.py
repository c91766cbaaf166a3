"""Requests inside an operation: a step sends its own key, and nothing else sends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from oncekey import AsyncOnce, Once
from oncekey.client import (
    AsyncIdempotentTransport,
    IdempotentAdapter,
    IdempotentTransport,
    Journal,
    NotSent,
)
from oncekey.engine.attempts.attempt_base import current_attempt, current_step


class Shop:
    """The other service, which records the paths and keys it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.fails = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.url.path, request.headers["Idempotency-Key"].strip('"')))
        if self.fails:
            raise httpx.LocalProtocolError("down")
        return httpx.Response(200, json={"n": len(self.seen)})

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.seen]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def client(shop: Shop) -> Iterator[httpx.Client]:
    with httpx.Client(
        transport=IdempotentTransport(httpx.MockTransport(shop)), base_url="http://shop"
    ) as opened:
        yield opened


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as opened:
        yield opened


def pay(client: httpx.Client, path: str = "/pay", **more: Any) -> Any:
    return client.post(path, json={"cents": 5}, **more).json()


# --- the key of the step --------------------------------------------------------------------------


def test_a_step_sends_its_own_key(once: Once, client: httpx.Client, shop: Shop) -> None:
    given: list[str] = []

    def body(attempt: Any) -> Any:
        def step(key: str) -> Any:
            given.append(key)
            return pay(client)

        attempt.step("payment:charge", step)
        return attempt.step("mail:send", step)

    once.run("checkout", "cart-1", body, retry_safe=True)
    assert shop.keys == given
    assert len(set(given)) == 2


def test_a_rerun_sends_the_same_key(once: Once, client: httpx.Client, shop: Shop) -> None:
    def body(attempt: Any) -> Any:
        return attempt.step("payment:charge", lambda key: pay(client))

    shop.fails = True
    with pytest.raises(httpx.LocalProtocolError):
        once.run("checkout", "cart-1", body, retry_safe=True)
    shop.fails = False
    once.run("checkout", "cart-1", body, retry_safe=True)
    first, again = shop.keys
    assert first == again


def test_a_step_sends_its_own_key_through_requests(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def send(self: Any, request: Any, **more: Any) -> Any:
        seen.append(request.headers["Idempotency-Key"])
        raise requests.exceptions.InvalidHeader("stop here")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    session = requests.Session()
    session.mount("http://", IdempotentAdapter(quoted=False))
    keys: list[str] = []

    def step(key: str) -> None:
        keys.append(key)
        session.post("http://shop/pay", data=b"5")

    with pytest.raises(requests.exceptions.InvalidHeader):
        once.run("checkout", "cart-1", lambda attempt: attempt.step("pay", step), retry_safe=True)
    assert seen == keys


def test_the_same_request_twice_in_a_step_is_a_retry(
    once: Once, client: httpx.Client, shop: Shop
) -> None:
    def step(key: str) -> None:
        pay(client)
        pay(client)

    once.run("checkout", "cart-1", lambda attempt: attempt.step("pay", step))
    assert len(set(shop.keys)) == 1
    assert len(shop.keys) == 2


@pytest.mark.parametrize("path", ["/pay?a=1", "/other"])
def test_a_second_request_in_a_step_is_refused(
    once: Once, client: httpx.Client, shop: Shop, path: str
) -> None:
    def step(key: str) -> None:
        pay(client)
        with pytest.raises(NotSent, match="a step of its own, or a key of its own") as caught:
            pay(client, path)
        assert "'payment:charge'" in str(caught.value)
        assert key not in str(caught.value)
        pay(client, path, headers={"Idempotency-Key": "its-own"})
        pay(client, path, extensions={"oncekey": {"key": "its-own-too"}})

    once.run("checkout", "cart-1", lambda attempt: attempt.step("payment:charge", step))
    assert shop.keys[1:] == ["its-own", "its-own-too"]


def test_a_second_request_is_refused_if_the_caller_sent_the_steps_key(
    once: Once, client: httpx.Client, shop: Shop
) -> None:
    def step(key: str) -> None:
        pay(client, headers={"Idempotency-Key": key})
        with pytest.raises(NotSent):
            pay(client, "/other")

    once.run("checkout", "cart-1", lambda attempt: attempt.step("pay", step))
    assert len(shop.seen) == 1


def test_a_redirect_inside_a_step_keeps_its_key(once: Once, shop: Shop) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        response = shop(request)
        away = {"Location": "http://shop/there"}
        return httpx.Response(307, headers=away) if request.url.path == "/pay" else response

    transport = IdempotentTransport(httpx.MockTransport(answer))
    with httpx.Client(transport=transport, base_url="http://shop", follow_redirects=True) as client:
        once.run("checkout", "cart-1", lambda attempt: attempt.step("pay", lambda key: pay(client)))
    assert [path for path, _ in shop.seen] == ["/pay", "/there"]
    assert len(set(shop.keys)) == 1


# --- outside of steps -----------------------------------------------------------------------------


def test_a_retry_safe_body_must_send_in_steps(once: Once, client: httpx.Client, shop: Shop) -> None:
    def body(attempt: Any) -> None:
        with pytest.raises(NotSent, match=r"Send it in attempt\.step"):
            pay(client)
        pay(client, headers={"Idempotency-Key": attempt.child_key("pay")})
        client.get("/look", headers={"Idempotency-Key": "not-looked-at"})

    once.run("checkout", "cart-1", body, retry_safe=True)
    assert [path for path, _ in shop.seen] == ["/pay", "/look"]


def test_a_body_that_runs_once_sends_new_keys(once: Once, client: httpx.Client, shop: Shop) -> None:
    def body(attempt: Any) -> None:
        pay(client)
        pay(client)

    once.run("checkout", "cart-1", body)
    assert len(set(shop.keys)) == 2


def test_the_journal_is_not_used_inside_an_operation(
    once: Once, shop: Shop, tmp_path: Path
) -> None:
    counts: list[int] = []
    with Journal(tmp_path / "keys") as journal:
        transport = IdempotentTransport(
            httpx.MockTransport(shop),
            journal=journal,
            on_progress=lambda progress: counts.append(journal.open_entries()),
        )
        with httpx.Client(transport=transport, base_url="http://shop") as client:
            once.run("a", "1", lambda attempt: pay(client))
            once.run("b", "1", lambda attempt: attempt.step("pay", lambda key: pay(client)))
            assert set(counts) == {0}
            pay(client)
    assert set(counts) == {0, 1}
    assert len(set(shop.keys)) == 3


def test_a_request_after_the_operation_has_a_new_key(
    once: Once, client: httpx.Client, shop: Shop
) -> None:
    once.run("checkout", "1", lambda attempt: attempt.step("pay", lambda key: pay(client)))
    pay(client)
    assert (current_step(), current_attempt()) == (None, None)
    assert len(set(shop.keys)) == 2


# --- threads and tasks ----------------------------------------------------------------------------


def test_each_thread_sends_the_key_of_its_own_step(
    once: Once, client: httpx.Client, shop: Shop
) -> None:
    """Eight threads are in their steps at the same time, and one thread is in no step."""
    together = threading.Barrier(9)
    keys: dict[str, str] = {}

    def work(cart: str) -> None:
        def step(key: str) -> None:
            keys[f"/pay/{cart}"] = key
            together.wait(60)
            pay(client, f"/pay/{cart}")
            together.wait(60)

        once.run("checkout", cart, lambda attempt: attempt.step("pay", step), retry_safe=True)

    threads = [threading.Thread(target=work, args=(f"cart-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    together.wait(60)
    pay(client, "/outside")
    together.wait(60)
    for thread in threads:
        thread.join(60)
    seen = dict(shop.seen)
    outside = seen.pop("/outside")
    assert seen == keys
    assert len(keys) == 8
    assert outside not in keys.values()


def _on_a_loop(shop: Shop, work: Callable[[AsyncOnce, httpx.AsyncClient], Any]) -> None:
    async def main() -> None:
        transport = AsyncIdempotentTransport(httpx.MockTransport(shop))
        async with (
            AsyncOnce("memory://") as once,
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            await work(once, client)

    asyncio.run(main())


def test_each_task_sends_the_key_of_its_own_step(shop: Shop) -> None:
    keys: dict[str, str] = {}

    async def work(once: AsyncOnce, client: httpx.AsyncClient) -> None:
        together = asyncio.Barrier(9)

        async def checkout(cart: str) -> None:
            async def step(key: str) -> None:
                keys[f"/pay/{cart}"] = key
                await together.wait()
                await client.post(f"/pay/{cart}")
                await together.wait()

            async def body(attempt: Any) -> None:
                await attempt.step("pay", step)

            await once.run("checkout", cart, body, retry_safe=True)

        async def outside() -> None:
            await together.wait()
            await client.post("/outside")
            await together.wait()

        await asyncio.gather(outside(), *(checkout(f"cart-{n}") for n in range(8)))

    _on_a_loop(shop, work)
    seen = dict(shop.seen)
    outside_key = seen.pop("/outside")
    assert seen == keys
    assert outside_key not in keys.values()


def test_a_task_that_outlives_its_step_does_not_send_its_key(shop: Shop) -> None:
    keys: list[str] = []

    async def work(once: AsyncOnce, client: httpx.AsyncClient) -> None:
        proceed = asyncio.Event()
        stragglers: list[asyncio.Task[None]] = []

        async def straggle() -> None:
            await proceed.wait()
            await client.post("/late")

        async def step(key: str) -> None:
            keys.append(key)
            stragglers.append(asyncio.create_task(straggle()))

        async def body(attempt: Any) -> None:
            await attempt.step("pay", step)

        await once.run("checkout", "cart-1", body, retry_safe=True)
        proceed.set()
        await asyncio.gather(*stragglers)

    _on_a_loop(shop, work)
    assert [path for path, _ in shop.seen] == ["/late"]
    assert shop.keys != keys


def test_an_async_step_refuses_a_second_request(shop: Shop) -> None:
    async def work(once: AsyncOnce, client: httpx.AsyncClient) -> None:
        async def step(key: str) -> None:
            await client.post("/pay")
            with pytest.raises(NotSent):
                await client.post("/other")

        async def body(attempt: Any) -> None:
            with pytest.raises(NotSent):
                await client.post("/outside")
            await attempt.step("pay", step)

        await once.run("checkout", "cart-1", body, retry_safe=True)

    _on_a_loop(shop, work)
    assert [path for path, _ in shop.seen] == ["/pay"]
