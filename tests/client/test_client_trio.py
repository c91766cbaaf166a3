"""The async transport on trio. Skipped where that is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.client.fake_time import AsyncFakeTime
from tests.client.scripted import Answer, Cut, Drop, Hang, serving

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


def test_a_lost_answer_is_fetched_again_and_a_journal_is_kept(tmp_path: Path) -> None:
    async def ask() -> httpx.Response:
        async with client(journal=journal, retry=Retry(base="1ms", cap="1ms")) as made:
            return await made.post(server.url)

    with serving(Drop(), Cut(10), Answer(201)) as server, Journal(tmp_path / "keys") as journal:
        response = anyio.run(ask, backend="trio")
        assert journal.open_entries() == 0
    delivery = delivery_of(response)
    assert delivery is not None
    assert (response.status_code, delivery.attempts) == (201, 3)
    assert len(set(server.keys)) == 1


def test_a_cancelled_request_gives_its_connection_back_and_keeps_its_key(tmp_path: Path) -> None:
    hang = Hang()

    async def cancel() -> None:
        async with client(journal=journal, clock=AsyncFakeTime()) as made:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(made.post, server.url)
                assert await anyio.to_thread.run_sync(hang.here.wait, 10)
                tasks.cancel_scope.cancel()
            assert journal.open_entries() == 1
            assert (await made.post(server.url)).status_code == 200

    with serving(hang, Answer()) as server, Journal(tmp_path / "keys") as journal:
        anyio.run(cancel, backend="trio")
        hang.go.set()
        assert journal.open_entries() == 0
    assert len(set(server.keys)) == 1


def test_a_try_is_cut_at_the_deadline() -> None:
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
