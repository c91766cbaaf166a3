"""One HTTP request on a connection of its own, and its reply, read to the last byte.

It is written by hand because a reply that was cut short must never be taken for a whole one, and
because a run sends many thousands of them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response. `code` is that of a problem document."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def is_replay(self) -> bool:
        return self.headers.get("x-idempotency-replayed") == "true"

    @property
    def code(self) -> str:
        if "json" not in self.headers.get("content-type", "") or self.status < 400:
            return ""
        return str(json.loads(self.body).get("code", ""))


async def post(port: int, path: str, headers: dict[str, str], body: dict[str, Any]) -> Reply:
    """Send a request to the loopback. Raises OSError or EOFError if the reply is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in head[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if "content-length" not in headers:
        raise EOFError("a response without a length")
    body = await reader.readexactly(int(headers["content-length"]))
    return Reply(int(head[0].split()[1]), headers, body.decode())
