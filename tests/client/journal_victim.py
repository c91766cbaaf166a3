"""A client process that is killed in the middle of a request, or forks, or comes second.

python -m tests.client.journal_victim <what> <journal> <url>
"""

from __future__ import annotations

import asyncio
import os
import sys
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
        asyncio.run(post_later(url, options))


async def post_later(url: str, options: dict[str, Any]) -> None:
    inner = httpx.AsyncHTTPTransport(verify=False)
    transport = AsyncIdempotentTransport(inner, **options)
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        await client.post(url, content=BODY)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def fork(journal: Journal, url: str) -> None:
    """The child is refused, the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            post("httpx", journal, url)
        except Exception as error:
            say(type(error).__name__, error)
        sys.exit(3)  # with all the finalisers that there are
    _, status = os.waitpid(child, 0)
    say("child", os.waitstatus_to_exitcode(status))
    post("httpx", journal, url)
    say("open entries", journal.open_entries())


def main(what: str, path: str, url: str) -> None:
    journal = Journal(path)
    if what == "fork":
        fork(journal, url)
    else:
        post(what, journal, url)
    journal.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
