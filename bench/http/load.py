"""The HTTP load: a number of connections, each of which sends requests for a number of seconds.

It runs in its own process, so that the server has its interpreter to itself. It prints how many
responses came, how long that took, and their statuses, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator

BODY = b'{"cents":500,"currency":"EUR"}'


class Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._unread = b""
        self._length = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._load.request())

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._length < 0:
            head, mark, rest = self._unread.partition(b"\r\n\r\n")
            if not mark:
                return
            self._unread = rest
            self._status = int(head[9:12])
            _, _, tail = head.lower().partition(b"content-length: ")
            self._length = int(tail.partition(b"\r\n")[0] or 0)
        if len(self._unread) >= self._length:
            self._unread, self._length = b"", -1
            if self._load.answered(self._status):
                self._transport.write(self._load.request())
            else:
                self._transport.close()


class Load:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._keys: Iterator[str] = (
            itertools.cycle([f"{args.prefix}-{n}" for n in range(args.known)])
            if args.known
            else (f"{args.prefix}-{n}" for n in itertools.count())
        )
        self.statuses: Counter[int] = Counter()
        self.ends = 0.0
        self.is_over = asyncio.Event()

    def request(self) -> bytes:
        if self._args.method == "GET":
            return b"GET /charges HTTP/1.1\r\nHost: x\r\nAuthorization: me\r\n\r\n"
        key = f"Idempotency-Key: {next(self._keys)}\r\n" if self._args.prefix else ""
        head = (
            "POST /charges HTTP/1.1\r\nHost: x\r\nAuthorization: me\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n{key}\r\n"
        )
        return head.encode() + BODY

    def answered(self, status: int) -> bool:
        self.statuses[status] += 1
        most = self._args.most
        if time.perf_counter() < self.ends and (not most or self.statuses.total() < most):
            return True
        self.is_over.set()
        return False


async def run(args: argparse.Namespace) -> dict[str, object]:
    load = Load(args)
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    load.ends = start + args.seconds
    for _ in range(args.connections):
        await loop.create_connection(lambda: Asker(load), "127.0.0.1", args.port)
    await load.is_over.wait()
    seconds = time.perf_counter() - start
    statuses = {str(status): count for status, count in load.statuses.items()}
    return {"answers": load.statuses.total(), "seconds": seconds, "statuses": statuses}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--method", default="POST")
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--prefix", default="", help="of the keys; none are sent without it")
    parser.add_argument("--known", type=int, default=0, help="go round so many keys")
    parser.add_argument("--most", type=int, default=0, help="answers; 0 for as many as there are")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
