"""`python -m bench.http.costly_comparisons`: what one caller's costly bodies do to another caller.

One uvicorn with the middleware and SQLite. A bystander sends a small request after the other, alone
at first, and then while another caller has sent BODIES short bodies at once whose comparison takes
as long as the limits allow. Prints how long the bystander's requests took, and what the other
caller got. It is no suite: its figures are on docs/adr/0045.
"""

from __future__ import annotations

import asyncio
import gzip
import statistics
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.servers.http_servers import Uvicorn

from oncekey import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.body_comparison import ESCAPES_MAX, VALUES_MAX

ROOT = Path(__file__).parents[2]
BODIES = 150
ALONE = 300
_float = b"0.00001" + b"0" * 40
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
# The first is there for comparison: as many requests of the other caller that cost nothing.
SENT = {
    "small": (JSON, b'{"cents":500}'),
    "floats": (JSON, b"[" + b",".join([_float] * VALUES_MAX) + b"]"),
    "escapes": (JSON, b'[1.5,"' + b"\\n" * ESCAPES_MAX + b'"]'),
    "form": (FORM, b"a=" + b"%41" * ESCAPES_MAX),
}


async def _charge(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def app() -> Any:
    """The app that uvicorn serves; the file is in the folder that it was started in."""
    import os

    def caller(scope: Any) -> str:
        found: bytes = dict(scope["headers"])[b"x-caller"]
        return found.decode()

    return IdempotencyMiddleware(_charge, AsyncOnce(os.environ["STORE"]), caller=caller)


def _request(caller: str, body: bytes, media: str = JSON, more: str = "") -> bytes:
    head = (
        f"POST /charges HTTP/1.1\r\nHost: x\r\nX-Caller: {caller}\r\n"
        f"Idempotency-Key: {uuid.uuid4()}\r\nContent-Type: {media}\r\n{more}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, tail = head.lower().partition(b"content-length: ")
    await reader.readexactly(int(tail.partition(b"\r\n")[0] or 0))
    if b"transfer-encoding: chunked" in head.lower():
        await reader.readuntil(b"0\r\n\r\n")
    return int(head[9:12])


async def _once(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    status = await _answer(reader)
    writer.close()
    return status


class Bystander:
    """Sends one request after the other and notes how long each took."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def times(self, until: asyncio.Event | None, most: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        took: list[float] = []
        while len(took) < most and not (until is not None and until.is_set()):
            began = time.perf_counter()
            writer.write(_request("bystander", b'{"cents":500}'))
            assert await _answer(reader) == 201
            took.append(time.perf_counter() - began)
        writer.close()
        return took


def _shown(name: str, took: list[float]) -> float:
    ordered = sorted(took)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(
        f"{name:46} {len(took):5} requests, p50 {p50 * 1000:7.1f} ms, p99 {p99 * 1000:7.1f} ms, "
        f"longest {ordered[-1] * 1000:7.1f} ms",
        flush=True,
    )
    return p50


async def _measure(port: int) -> None:
    bystander = Bystander(port)
    await bystander.times(None, 100)
    alone = _shown("bystander alone", await bystander.times(None, ALONE))
    for name, (media, body) in SENT.items():
        packed = gzip.compress(body)
        more = "Content-Encoding: gzip\r\n"
        requests = [_request("costly", packed, media, more) for _ in range(BODIES)]
        done = asyncio.Event()
        began = time.perf_counter()
        beside = asyncio.create_task(bystander.times(done, 100_000))
        statuses = Counter(await asyncio.gather(*[_once(port, one) for one in requests]))
        done.set()
        took = await beside
        p50 = _shown(f"beside {BODIES} bodies of {len(packed)} bytes: {name}", took)
        seconds = time.perf_counter() - began
        print(f"    p50 is {p50 / alone:.1f} times as long; the others: {dict(statuses)}", end="")
        print(f" in {seconds:.1f} s", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {"STORE": f"sqlite:///{folder}/keys.db"}
        app = "bench.http.costly_comparisons:app"
        with Uvicorn(app, cwd=ROOT, env=env, options=("--factory",)) as server:
            asyncio.run(_measure(server.port))


if __name__ == "__main__":
    main()
