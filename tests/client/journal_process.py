"""A client process with a journal, which a test kills in the middle of a request, or which forks.

python -m tests.client.journal_process <what> <journal> <url>
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import httpx
import requests

from oncekey.client import (
    AsyncIdempotentTransport,
    IdempotentAdapter,
    IdempotentTransport,
    Journal,
)

BODY = b'{"cents": 500}'


def post(how: str, journal: Journal, url: str) -> None:
    options: dict[str, Any] = {"journal": journal}
    if how == "httpx":
        inner = httpx.HTTPTransport(verify=False)
        with httpx.Client(transport=IdempotentTransport(inner, **options), timeout=60) as client:
            client.post(url, content=BODY)
    elif how == "requests":
        with requests.Session() as session:
            session.mount("http://", IdempotentAdapter(**options))
            session.post(url, data=BODY, timeout=60)
    else:
        asyncio.run(post_async(url, options))


async def post_async(url: str, options: dict[str, Any]) -> None:
    inner = httpx.AsyncHTTPTransport(verify=False)
    transport = AsyncIdempotentTransport(inner, **options)
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        await client.post(url, content=BODY)


def print_line(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def fork(journal: Journal, url: str) -> None:
    """The child is refused, and the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            post("httpx", journal, url)
        except Exception as error:
            print_line(type(error).__name__, error)
        sys.exit(3)  # runs all finalizers
    _, status = os.waitpid(child, 0)
    print_line("child", os.waitstatus_to_exitcode(status))
    post("httpx", journal, url)
    print_line("open entries", journal.open_entries())


def fork_and_open(journal: Journal, path: str) -> None:
    """The child cannot open a journal under the same path, and does not hang on a lock that a
    thread of the parent held during the fork."""
    holding, proceed = threading.Event(), threading.Event()

    def hold() -> None:
        with journal._file.memory_lock:
            holding.set()
            proceed.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    holding.wait(60)
    child = os.fork()
    if child == 0:
        for attempt in (lambda: Journal(path), journal.entry_for("k", b"").begin):
            try:
                attempt()
                print_line("opened")
            except Exception as error:
                print_line(type(error).__name__, error)
        Journal(path + "2").close()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    proceed.set()
    other.join()
    print_line("open entries", journal.open_entries())


def fork_and_die() -> None:
    """The child prints its process id and lives on until the test kills it."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        print_line(os.getpid())
        os.write(writes, b"x")
        signal.pause()
    os.read(reads, 1)
    os._exit(0)


def main(what: str, path: str, url: str) -> None:
    journal = Journal(path)
    if what == "fork":
        fork(journal, url)
    elif what == "fork and open":
        fork_and_open(journal, path)
    elif what == "fork and die":
        fork_and_die()
    else:
        post(what, journal, url)
    journal.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
