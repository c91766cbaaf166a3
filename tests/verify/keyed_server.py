"""A payments API on a socket whose guard is right; the servers of the tests break one thing each.

It runs in the event loop of the test, and its handlers wait for what the client does, not for
time: a slow one ends when enough requests with its key have come, or when its client has left.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import h11

from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation, RequestTemplate, Target, Variant

HOST = "127.0.0.1"
LARGE_BYTES = 300_000
# How long a probe waits for an answer: for long, so that a busy machine ends no wait that is to
# succeed, or not long, if the server never has one.
PATIENCE = 120.0
SOON = 0.25


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


IN_FLIGHT = Reply(409, b"in flight")


@dataclass(frozen=True)
class Received:
    """A request; `has_left` is set when its client has gone."""

    key: str
    body: Mapping[str, Any]
    has_left: asyncio.Event

    @property
    def order(self) -> str:
        return str(self.body["order"])


@dataclass
class Record:
    """What is stored of a key; without a reply it is in flight."""

    reply: Reply | None = None


@dataclass
class Arrivals:
    """How many requests with one key have come, and who waits for more of them."""

    number: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class KeyedServer:
    """The API. `respond` is its guard, `operate` its handler."""

    patience: ClassVar = PATIENCE  # of its probes

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.effects: Counter[str] = Counter()
        self.arrivals: dict[str, Arrivals] = {}
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, HOST, 0, backlog=200)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def origin(self) -> Origin:
        assert self._listening is not None
        return Origin("http", HOST, self._listening.sockets[0].getsockname()[1])

    # --- what a faulty server overrides ---------------------------------------------------------

    async def respond(self, received: Received) -> Reply:
        record = self.records.get(received.key)
        if record is None:
            return await self.run_claimed(received)
        return record.reply or IN_FLIGHT

    async def run_claimed(self, received: Received) -> Reply:
        record = self.records[received.key] = Record()
        record.reply = await self.operate(received)
        return record.reply

    async def operate(self, received: Received) -> Reply:
        self.effects[received.order] += 1
        number = sum(self.effects.values())
        await let_others_run()
        await self.until_left(received)
        await self.until_arrived(received.key, received.body.get("arrivals", 1))
        if received.body.get("reply") == "empty":
            return Reply(204)
        answer: dict[str, Any] = {"id": f"payment-{number}"}
        if received.body.get("reply") == "large":
            answer["text"] = "x" * LARGE_BYTES
        return Reply(201, json.dumps(answer).encode())

    async def after_reply(self, received: Received, *, was_reset: bool) -> None:
        """Is called when the client has gone, after its reply was written."""

    # --- the rest -------------------------------------------------------------------------------

    async def until_left(self, received: Received) -> None:
        """Wait until the client of a first request has left, if the request says so."""
        is_first = self.arrivals[received.key].number == 1
        if is_first and received.body.get("until") == "left":
            await received.has_left.wait()

    async def until_arrived(self, key: str, number: int) -> None:
        """Wait until so many requests with this key have come."""
        arrivals = self.arrivals.setdefault(key, Arrivals())
        async with arrivals.changed:
            await arrivals.changed.wait_for(lambda: arrivals.number >= number)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the client has left, or the server ends
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER)
        received = await _read(parser, reader)
        if received is None:
            return
        arrivals = self.arrivals.setdefault(received.key, Arrivals())
        async with arrivals.changed:
            arrivals.number += 1
            arrivals.changed.notify_all()
        watch = asyncio.create_task(_watch(reader, received.has_left))
        try:
            await self._answer(parser, writer, await self.respond(received))
            await self.after_reply(received, was_reset=await watch)
        finally:
            watch.cancel()

    async def _answer(
        self, parser: h11.Connection, writer: asyncio.StreamWriter, reply: Reply
    ) -> None:
        headers = [("Content-Length", str(len(reply.body))), ("Connection", "close")]
        if reply.status == 204:
            headers = headers[1:]
        head = h11.Response(status_code=reply.status, headers=[*headers, *reply.headers])
        parts = [parser.send(head)]
        if reply.body:
            parts.append(parser.send(h11.Data(data=reply.body)))
        parts.append(parser.send(h11.EndOfMessage()))
        writer.write(b"".join(part or b"" for part in parts))
        await writer.drain()


async def let_others_run() -> None:
    """Requests that are already on their sockets are read meanwhile."""
    for _ in range(20):
        await asyncio.sleep(0)


async def _read(parser: h11.Connection, reader: asyncio.StreamReader) -> Received | None:
    body, key = bytearray(), ""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            parser.receive_data(data)
            if not data:
                return None
        elif isinstance(event, h11.Request):
            key = dict(event.headers).get(b"idempotency-key", b"").decode()
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return Received(key, json.loads(bytes(body) or b"{}"), asyncio.Event())


async def _watch(reader: asyncio.StreamReader, has_left: asyncio.Event) -> bool:
    """Wait until the client has gone; True if it left by a reset."""
    try:
        await reader.read(1)
        return False
    except OSError:
        return True
    finally:
        has_left.set()


@dataclass
class Ledger:
    """Counts effects: those of one order, or with `is_total` those of all."""

    server: KeyedServer
    is_total: bool = False
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return "the server's ledger"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        if self.is_total:
            return sum(self.server.effects.values())
        return self.server.effects[operation.values["unique"]]


def template(**body: Any) -> RequestTemplate:
    text = json.dumps({"order": "{{unique}}", "cents": 5, **body})
    return RequestTemplate("POST", "/payments", (("Content-Type", "application/json"),), text)


def target(server: KeyedServer, **fields: Any) -> Target:
    """The server as a target with a main request; `fields` are other fields of a Target."""
    variants = {Variant.MAIN: template(), **fields.pop("variants", {})}
    fields.setdefault("effects", Ledger(server))
    return Target(server.origin, variants, **fields)
