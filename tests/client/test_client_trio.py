"""The async transport on trio. These tests are skipped if trio is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.client.fake_retry_clock import AsyncFakeRetryClock
from tests.client.scripted_server import CutBody, DropConnection, Hang, Respond, scripted_server

from oncekey.client import (
    AsyncIdempotentTransport,
    Journal,
    RetriesExhausted,
    Retry,
    delivery_of,
)

pytest.importorskip("trio", reason="pip install trio")


def client(**options: Any) -> httpx.AsyncClient:
    inner = httpx.AsyncHTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
    return httpx.AsyncClient(transport=AsyncIdempotentTransport(inner, **options))


def test_trio_retries_a_lost_response_with_a_journal(tmp_path: Path) -> None:
    async def ask() -> httpx.Response:
        async with client(journal=journal, retry=Retry(base="1ms", cap="1ms")) as made:
            return await made.post(server.url)

    with (
        scripted_server(DropConnection(), CutBody(10), Respond(201)) as server,
        Journal(tmp_path / "keys") as journal,
    ):
        response = anyio.run(ask, backend="trio")
        assert journal.open_entries() == 0
    delivery = delivery_of(response)
    assert delivery is not None
    assert (response.status_code, delivery.attempts) == (201, 3)
    assert len(set(server.keys)) == 1


def test_trio_cancellation_returns_the_connection_and_keeps_the_key(tmp_path: Path) -> None:
    hang = Hang()

    async def cancel() -> None:
        async with client(journal=journal, clock=AsyncFakeRetryClock()) as made:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(made.post, server.url)
                assert await anyio.to_thread.run_sync(hang.arrived.wait, 10)
                tasks.cancel_scope.cancel()
            assert journal.open_entries() == 1
            assert (await made.post(server.url)).status_code == 200

    with scripted_server(hang, Respond()) as server, Journal(tmp_path / "keys") as journal:
        anyio.run(cancel, backend="trio")
        hang.proceed.set()
        assert journal.open_entries() == 0
    assert len(set(server.keys)) == 1


def test_trio_cancels_a_try_at_the_deadline() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async def ask() -> None:
        transport = AsyncIdempotentTransport(
            httpx.MockTransport(never), retry=Retry(deadline="10ms", base="1ms", cap="1ms")
        )
        async with httpx.AsyncClient(transport=transport) as made:
            await made.post("http://shop/")

    with pytest.raises(RetriesExhausted, match="no answer in time"):
        anyio.run(ask, backend="trio")
