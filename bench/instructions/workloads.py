"""What is counted: each workload does an operation a number of times, in a process of its own.

`python -m bench.instructions.workloads NAME TIMES` runs one; suite.py does so under callgrind. All
of them end in memory, so nothing but the Python around the store is counted.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

TASKS: Final = 16
OUTCOME: Final = {"id": "ch_1"}
REQUEST: Final = {"cents": 100}
PAYLOAD: Final = b'{"cents":500,"currency":"EUR"}'

# Every workload takes the keys to use, one per operation.
Workload = Callable[[Sequence[str]], None]


# --- functions ------------------------------------------------------------------------------------


def straight_line(keys: Sequence[str]) -> None:
    from bench.instructions.straight_line import StraightLine

    store = StraightLine()
    for key in keys:
        store.run("charge", key, lambda attempt: OUTCOME, "acct_1", REQUEST)


def once_first(keys: Sequence[str]) -> None:
    from oncekey import Once

    with Once("memory://") as once:
        for key in keys:
            once.run("charge", key, lambda attempt: OUTCOME, scope="acct_1", request=REQUEST)


def once_first_prometheus(keys: Sequence[str]) -> None:
    from prometheus_client import CollectorRegistry

    from oncekey import Once
    from oncekey.metrics.prometheus import PrometheusMetrics

    with Once("memory://") as once:
        PrometheusMetrics(once, registry=CollectorRegistry())
        for key in keys:
            once.run("charge", key, lambda attempt: OUTCOME, scope="acct_1", request=REQUEST)


def once_replay(keys: Sequence[str]) -> None:
    once_first([keys[0]] * len(keys))


def async_once_first(keys: Sequence[str]) -> None:
    from oncekey import AsyncOnce

    async def body(attempt: object) -> dict[str, str]:
        return OUTCOME

    async def all_of_them() -> None:
        async with AsyncOnce("memory://") as once:
            await _in_tasks(
                keys,
                lambda key: once.run("charge", key, body, scope="acct_1", request=REQUEST),
            )

    asyncio.run(all_of_them())


def async_once_replay(keys: Sequence[str]) -> None:
    async_once_first([keys[0]] * len(keys))


def idemkit_sync_first(keys: Sequence[str]) -> None:
    from idemkit import InMemoryBackend, MethodConfig, idempotent_sync

    @idempotent_sync(backend=InMemoryBackend(), config=MethodConfig(key_fields=["order"]))
    def charge(order: str, cents: int) -> dict[str, str]:
        return OUTCOME

    for key in keys:
        charge(order=key, cents=100)


def idemkit_sync_replay(keys: Sequence[str]) -> None:
    idemkit_sync_first([keys[0]] * len(keys))


def idemkit_async_first(keys: Sequence[str]) -> None:
    from idemkit import InMemoryBackend, MethodConfig, idempotent

    @idempotent(backend=InMemoryBackend(), config=MethodConfig(key_fields=["order"]))
    async def charge(order: str, cents: int) -> dict[str, str]:
        return OUTCOME

    asyncio.run(_in_tasks(keys, lambda key: charge(order=key, cents=100)))


def idemkit_async_replay(keys: Sequence[str]) -> None:
    idemkit_async_first([keys[0]] * len(keys))


async def _in_tasks(keys: Sequence[str], run: Callable[[str], Awaitable[object]]) -> None:
    left = iter(keys)
    await run(next(left))  # alone: if all have the same key, the others are replays

    async def work() -> None:
        for key in left:
            await run(key)

    await asyncio.gather(*(work() for _ in range(TASKS)))


# --- HTTP: the app is called as a server calls it -------------------------------------------------


def asgi_bare(keys: Sequence[str]) -> None:
    from bench.http.apps import bare

    _post(bare(), keys)


def asgi_first(keys: Sequence[str]) -> None:
    from bench.http.apps import oncekey

    _post(oncekey("memory://"), keys)


def asgi_replay(keys: Sequence[str]) -> None:
    asgi_first([keys[0]] * len(keys))


def asgi_idemkit_first(keys: Sequence[str]) -> None:
    from bench.http.apps import idemkit

    _post(idemkit("memory://"), keys)


def asgi_idemkit_replay(keys: Sequence[str]) -> None:
    asgi_idemkit_first([keys[0]] * len(keys))


def fastapi_guard_first(keys: Sequence[str]) -> None:
    from bench.instructions.guarded_app import guarded

    _post(guarded(), keys)


def _post(app: Callable[..., Awaitable[None]], keys: Sequence[str]) -> None:
    """One request after the other, each in a task of its own, as uvicorn does it."""

    async def requests() -> None:
        for key in keys:
            statuses: list[int] = []
            await asyncio.create_task(_request(app, key, statuses))
            if statuses != [201]:
                raise RuntimeError(f"the app answered {statuses}")

    asyncio.run(requests())


async def _request(app: Callable[..., Awaitable[None]], key: str, statuses: list[int]) -> None:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "root_path": "",
        "method": "POST",
        "path": "/charges",
        "raw_path": b"/charges",
        "query_string": b"",
        "headers": [
            (b"host", b"x"),
            (b"authorization", b"me"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(PAYLOAD)).encode()),
            (b"idempotency-key", key.encode()),
        ],
        "state": {},
    }
    disconnected = asyncio.get_running_loop().create_future()
    messages = [{"type": "http.request", "body": PAYLOAD, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await disconnected
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)


WORKLOADS: Final[dict[str, Workload]] = {
    workload.__name__: workload
    for workload in (
        straight_line,
        once_first,
        once_first_prometheus,
        once_replay,
        async_once_first,
        async_once_replay,
        idemkit_sync_first,
        idemkit_sync_replay,
        idemkit_async_first,
        idemkit_async_replay,
        asgi_bare,
        asgi_first,
        asgi_replay,
        asgi_idemkit_first,
        asgi_idemkit_replay,
        fastapi_guard_first,
    )
}


def main() -> None:
    warnings.simplefilter("ignore")  # idemkit warns that no scope is set; there is one caller
    name, times = sys.argv[1], int(sys.argv[2])
    WORKLOADS[name]([f"order-{number:06}" for number in range(times)])


if __name__ == "__main__":
    main()
