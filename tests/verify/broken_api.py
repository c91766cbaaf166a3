"""One server of examples/broken in this process, driven message by message.

Time stands still: a request that asks for a slow provider waits until the test lets it go on, and
the guard's clock is moved by hand.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from examples.broken.catalog import SERVERS
from examples.broken.payments import ALICE, Shop, payments_api

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def id(self) -> Any:
        return json.loads(self.body)["id"]


class BrokenApi:
    """The API, its clock and its provider."""

    def __init__(self, name: str) -> None:
        self.seconds = 0.0
        self.provider_answers = asyncio.Event()
        self.shop = Shop(self._sleep)
        self.app = payments_api(SERVERS[name](lambda: self.seconds), self.shop)

    async def _sleep(self, seconds: float) -> None:
        if seconds >= 1:
            await self.provider_answers.wait()
        else:
            await asyncio.sleep(0)

    def effects(self, order: str = "book") -> int:
        return self.shop.effects[order]

    async def pay(
        self,
        *,
        key: str = "key-1",
        path: str = "/payments",
        token: str = ALICE,
        lines: list[str] | None = None,
        gone: bool = False,
        **body: Any,
    ) -> Answer:
        """Sends a payment. `lines` are the lines of the key's header, `gone` is a client that has
        left when its answer is there."""
        content = json.dumps({"order": "book", "cents": 500, **body}).encode()
        keys = [key] if lines is None else lines
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"authorization", f"Bearer {token}".encode()),
                *((b"idempotency-key", line.encode("utf-8")) for line in keys),
            ],
        }
        received: asyncio.Queue[Message] = asyncio.Queue()
        received.put_nowait({"type": "http.request", "body": content, "more_body": False})
        if gone:
            received.put_nowait({"type": "http.disconnect"})
        sent: list[Message] = []

        async def send(message: Any) -> None:
            sent.append(dict(message))

        await self.app(scope, received.get, send)
        headers = [(n.decode().lower(), v.decode()) for n, v in sent[0]["headers"]]
        whole = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], headers, whole)

    async def pay_slowly(self, **options: Any) -> asyncio.Task[Answer]:
        """Sends a payment whose provider waits for `provider_answers`, and comes back when it is
        there."""
        task = asyncio.create_task(self.pay(seconds=5, **options))
        await _until_nothing_moves()
        assert not task.done()
        return task

    async def while_running(self, **options: Any) -> asyncio.Task[Answer]:
        """Sends another one meanwhile; it may be answered, or run as well."""
        task = asyncio.create_task(self.pay(**{"seconds": 5, **options}))
        await _until_nothing_moves()
        return task


async def _until_nothing_moves() -> None:
    """Gives every task that can go on the chance to; nothing here waits for anything real."""
    for _ in range(50):
        await asyncio.sleep(0)
