"""The connection of the verifier: every way a response can be framed, and every way to leave it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from oncekey.verify.raw_connection import ConnectionFailed, DropPoint, Origin, RawConnection
from oncekey.verify.recorded_exchange import WireRequest, WireResponse

T = TypeVar("T")
REQUEST = WireRequest("POST", "/", (("Idempotency-Key", b"k"),), b"abc")
LENGTH = b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n0123456789"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"
)
UNTIL_CLOSED = b"HTTP/1.0 201 Created\r\n\r\n0123456789"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
AFTER_A_HINT = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" + LENGTH
WITH_BODY = (LENGTH, CHUNKED, UNTIL_CLOSED, AFTER_A_HINT)


def talk(response: bytes, use: Callable[[RawConnection], Awaitable[T]]) -> tuple[T, bytes]:
    """Serve one connection with these bytes; return what `use` gave, and what the server read."""

    async def main() -> tuple[T, bytes]:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.readuntil(b"abc"))
            writer.write(response)
            try:
                await writer.drain()
            except ConnectionError:
                pass  # the client has left
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with await RawConnection.open(Origin("http", "127.0.0.1", port)) as connection:
                async with asyncio.timeout(10):
                    await connection.send(REQUEST)
                    given = await use(connection)
            return given, await received

    return asyncio.run(main())


@pytest.mark.parametrize("response", WITH_BODY, ids=["length", "chunked", "closed", "after 103"])
def test_a_response_is_read_whatever_ends_it(response: bytes) -> None:
    read, _ = talk(response, lambda connection: connection.read_response())
    assert (read.status, read.body, read.is_complete) == (201, b"0123456789", True)


def test_a_response_without_a_body_is_complete() -> None:
    read, _ = talk(NO_CONTENT, lambda connection: connection.read_response())
    assert (read.status, read.body, read.is_complete) == (204, b"", True)


@pytest.mark.parametrize("point", DropPoint)
@pytest.mark.parametrize("response", [*WITH_BODY, NO_CONTENT])
def test_a_response_can_be_left_at_every_point(response: bytes, point: DropPoint) -> None:
    async def leave(connection: RawConnection) -> WireResponse | None:
        read = await connection.read_until(point)
        connection.abort()
        return read

    read, _ = talk(response, leave)
    if point is DropPoint.BEFORE_HEADERS:
        assert read is None
        return
    assert read is not None
    assert not read.is_complete
    if point is DropPoint.AFTER_HEADERS:
        assert read.body == b""
    elif point is DropPoint.MID_BODY and response != NO_CONTENT:
        assert 0 < len(read.body) < 10
    elif response in (LENGTH, AFTER_A_HINT):
        assert read.body == b"012345678"


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (b"", "without a response"),
        (LENGTH[:-1], "in the middle of its response"),
        (CHUNKED[:-1], "in the middle of its response"),
        (b"220 SMTP ready\r\n\r\n", "not HTTP/1.1"),
    ],
)
def test_a_response_that_is_cut_off_says_where(response: bytes, what: str) -> None:
    with pytest.raises(ConnectionFailed, match=what):
        talk(response, lambda connection: connection.read_response())


def test_a_request_is_sent_with_its_lines_as_they_are() -> None:
    _, sent = talk(LENGTH, lambda connection: connection.read_response())
    assert sent.startswith(b"POST / HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Idempotency-Key: k\r\n" in sent
    assert b"Content-Length: 3\r\n" in sent


def test_nobody_listening_is_said() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionFailed, match=r"cannot connect to http://127\.0\.0\.1:1:"):
            await RawConnection.open(Origin("http", "127.0.0.1", 1))

    asyncio.run(main())
