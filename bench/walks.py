"""`python -m bench walks`: the files one operation goes through, and how often it changes file.

A profile function follows seven operations: a run, an ASGI request, a FastAPI request, a step and a
message on the memory store, a client's request, and `oncekey resolve` on SQLite. Each is followed
when it is done for the second time, so that imports and caches are warm. The output is Markdown,
for ARCHITECTURE.md. The module imports public names only, so it also runs on another version of the
source.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final, NamedTuple

import httpx
from fastapi import FastAPI, Request

import oncekey
from oncekey import AsyncOnce, Attempt, Once, OperationFailed
from oncekey.cli.main import main
from oncekey.client import IdempotentTransport
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.fastapi import Idempotency
from oncekey.queues import Consumer, MemoryBroker
from oncekey.stores.sqlite import SQLiteStore

PACKAGE: Final = str(Path(oncekey.__file__).parent) + os.sep
# The lowest bits of the argument of the RESUME instruction: 0 at the beginning of a function, else
# after a yield or an await.
RESUME_KIND: Final = 3
NOTE: Final = """\
A call enters a function of oncekey; a resumption enters it again after a yield or an await. A hop
is a call or a resumption that leads from one file to another; returns are not counted. A step is
the difference between a run with a step and a run without one."""


class Entry(NamedTuple):
    """One call or resumption of a function of oncekey."""

    file: str
    is_call: bool
    is_hop: bool  # the function that ran before it in this thread is in another file


class Walk(NamedTuple):
    name: str
    files: list[str]  # in order of first entry
    calls: int
    resumptions: int
    hops: int


class Recorder:
    """Collects the entries of all threads whose profile function it is, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.entries: list[Entry] = []
        self._current = threading.local()  # .file: where this thread is, or was last

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if not self.is_on or not file.startswith(PACKAGE):
            return
        if event == "call":
            before = getattr(self._current, "file", file)
            is_call = frame.f_code.co_code[frame.f_lasti + 1] & RESUME_KIND == 0
            self.entries.append(Entry(file.removeprefix(PACKAGE), is_call, before != file))
            self._current.file = file
        elif event == "return":
            self._current.file = _caller_file(frame) or file


def _caller_file(frame: FrameType) -> str | None:
    """The nearest file of oncekey above this frame in the stack."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(PACKAGE):
        above = above.f_back
    return above and above.f_code.co_filename


def record(operation: Callable[[str], object]) -> list[Entry]:
    """What the operation enters when it is done for the second time, under a new key."""
    recorder = Recorder()
    # Before the first time, because that may start threads that the second time uses.
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    try:
        operation("first")
        recorder.is_on = True
        operation("second")
    finally:
        recorder.is_on = False
        sys.setprofile(None)
        threading.setprofile(None)
    return recorder.entries


def walk(name: str, entries: Sequence[Entry], without: Sequence[Entry] = ()) -> Walk:
    """The figures of an operation, less those of the same operation `without` one part of it."""
    pairs = zip(entries, without, strict=False)
    begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    extra = Counter(entry.file for entry in entries)
    extra.subtract(entry.file for entry in without)
    files = dict.fromkeys(entry.file for entry in entries[begin:] if extra[entry.file] > 0)
    calls = sum(entry.is_call for entry in entries) - sum(entry.is_call for entry in without)
    hops = sum(entry.is_hop for entry in entries) - sum(entry.is_hop for entry in without)
    return Walk(name, list(files), calls, len(entries) - len(without) - calls, hops)


# --- the operations -------------------------------------------------------------------------------


def once_run() -> list[Entry]:
    with Once("memory://") as once:
        return record(lambda key: once.run("charge", key, lambda attempt: 1, request={"cents": 5}))


def once_run_with_step() -> list[Entry]:
    def body(attempt: Attempt) -> int:
        return attempt.step("card", lambda child_key: 1)

    with Once("memory://") as once:
        return record(lambda key: once.run("charge", key, body, request={"cents": 5}))


def asgi_request() -> list[Entry]:
    app, once = FastAPI(), AsyncOnce("memory://")
    app.post("/charges")(_charge)
    app.add_middleware(IdempotencyMiddleware, once=once, caller=lambda scope: "account")
    return _record_requests(app, once)


def fastapi_request() -> list[Entry]:
    def caller(request: Request) -> str:
        return "account"

    app, once = FastAPI(), AsyncOnce("memory://")
    idempotency = Idempotency(once, caller=caller)
    idempotency.attach(app)
    app.post("/charges")(idempotency.guard()(_charge))
    return _record_requests(app, once)


async def _charge(order: dict[str, int]) -> dict[str, int]:
    return {"charged": order["cents"]}


def _record_requests(app: FastAPI, once: AsyncOnce) -> list[Entry]:
    async def post(key: str) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = {"Idempotency-Key": key}
            response = await client.post("/charges", json={"cents": 5}, headers=headers)
            assert response.json() == {"charged": 5}

    with asyncio.Runner() as runner:
        entries = record(lambda key: runner.run(post(key)))
        runner.run(once.close())
    return entries


def client_request() -> list[Entry]:
    inner = httpx.MockTransport(lambda request: httpx.Response(201, json={"id": 1}))
    with httpx.Client(transport=IdempotentTransport(inner), base_url="http://shop") as client:
        return record(lambda key: client.post("/charges", json={"order": key}))


def message() -> list[Entry]:
    """A message from its receipt to its removal, without the threads of the loop."""
    broker = MemoryBroker("orders")

    def handle(_: str) -> None:
        (taken,) = broker.receive(1, 0.0, 30.0)
        broker.settle([(taken, consumer.handle(taken))])

    with Once("memory://") as once:
        consumer = Consumer(once, lambda taken: None, broker, name="shipping", key="json:$.id")
        for id in (1, 2):
            broker.send(f'{{"id": {id}}}')
        return record(handle)


def resolved_key() -> list[Entry]:
    """`oncekey resolve` of keys whose owner seems to be dead: by its clock it is an hour ago."""
    entries: list[Entry] = []

    def resolve(key: str) -> None:
        reason = ["--by", "ana", "--why", "INC-7", "--yes"]
        with redirect_stdout(io.StringIO()):
            assert main(["resolve", url, "charge", key, "--failed", "declined", *reason]) == 0

    def hold_second(_: Attempt) -> None:
        with suppress(OperationFailed):
            once.run("charge", "second", lambda _: entries.extend(record(resolve)))

    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.db"
        url = f"sqlite:///{path}"
        store = SQLiteStore(path, clock=lambda: time.time_ns() // 1_000 - 3_600_000_000)
        with Once(store) as once, suppress(OperationFailed):
            once.run("charge", "first", hold_second)
    return entries


# --- the output -----------------------------------------------------------------------------------


def show(words: Sequence[str] = ()) -> None:
    run = once_run()
    walks = [
        walk("`Once.run`", run),
        walk("an ASGI request", asgi_request()),
        walk("a FastAPI request", fastapi_request()),
        walk("a step", once_run_with_step(), without=run),
        walk("a client request", client_request()),
        walk("a message", message()),
        walk("`oncekey resolve`", resolved_key()),
    ]
    print("| walk | files | calls | resumptions | hops |\n|---|---|---|---|---|")
    for name, files, calls, resumptions, hops in walks:
        print(f"| {name} | {len(files)} | {calls} | {resumptions} | {hops} |")
    print(f"\n{NOTE}")
    for name, files, *_ in walks:
        print(f"\nThe files of {name}, in order of first entry:\n")
        print("\n".join(f"{number}. `{file}`" for number, file in enumerate(files, 1)))
