"""The provider: the process in which effects happen, and which chaos does not touch.

    python -m tests.support.chaos.effect_provider PORT

It speaks lines of JSON. An effect is appended to a file and synced before it is confirmed. With
`dedup` the provider recognises a child key that it has seen and confirms the first effect again, as
good payment providers do; without, every call is another effect. `find` says whether a child key
has had an effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.chaos.chaos_history import FOLDER_VARIABLE, history_of_environment

PORT_VARIABLE: Final = "CHAOS_PROVIDER_PORT"
_CALL_SECONDS: Final = 20


class Ledger:
    """The effects so far, by child key."""

    def __init__(self) -> None:
        self._history = history_of_environment("provider")
        path = Path(os.environ[FOLDER_VARIABLE]) / "effects.ledger"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._by_child: dict[str, str] = {}
        self._count = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "find" in request:
            return {"id": self._by_child.get(request["find"])}
        return {"id": self._add(**request)}

    def _add(self, *, child: str, dedup: bool, **told: Any) -> str:
        known = self._by_child.get(child) if dedup else None
        if known is not None:
            self._history.write("effect again", id=known, child=child, **told)
            return known
        self._count += 1
        id = f"e-{self._count}"
        os.write(self._file, f"{id} {child} {told['id_of']}\n".encode())
        os.fsync(self._file)
        self._by_child.setdefault(child, id)
        self._history.write("effect", id=id, child=child, **told)
        return id


async def serve(port: int) -> None:
    ledger = Ledger()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(ledger.answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass  # the caller was killed
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


class ProviderClient:
    """The calls of one process to the provider, on connections that are used again."""

    def __init__(self) -> None:
        self._port = int(os.environ[PORT_VARIABLE])
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def effect(self, child: str, *, dedup: bool, id_of: str, fence: int, by: str) -> str:
        """Make an effect for the operation `id_of`, and return the effect's id."""
        request = {"child": child, "dedup": dedup, "id_of": id_of, "fence": fence, "by": by}
        return str((await self._call(request))["id"])

    async def find(self, child: str) -> str | None:
        """Return the id of the effect that a child key has had, if any."""
        return (await self._call({"find": child}))["id"]  # type: ignore[no-any-return]

    async def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._connection() as (reader, writer), asyncio.timeout(_CALL_SECONDS):
            writer.write(json.dumps(request).encode() + b"\n")
            return json.loads(await reader.readline())  # type: ignore[no-any-return]

    @asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        if self._idle:
            pair = self._idle.pop()
        else:
            pair = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield pair
        except BaseException:
            pair[1].close()  # a reply may still come on it
            raise
        self._idle.append(pair)


def blocking_effect(child: str, *, id_of: str, fence: int, by: str) -> str:
    """Make an effect that the provider deduplicates, from a thread."""
    request = {"child": child, "dedup": True, "id_of": id_of, "fence": fence, "by": by}
    address = ("127.0.0.1", int(os.environ[PORT_VARIABLE]))
    with socket.create_connection(address, _CALL_SECONDS) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as replies:
            return str(json.loads(replies.readline())["id"])


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
