"""Bodies of requests: read into memory, so that they can be sent again as they were."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import requests
from tests.client.clients import HttpxClient, RequestsClient, open_client
from tests.client.fake_retry_clock import FakeRetryClock
from tests.client.scripted_server import DropConnection, Respond, scripted_server

from oncekey.client import AsyncIdempotentTransport, IdempotentAdapter, NotSent, Retry


def parts() -> Iterator[bytes]:
    yield b"first, "
    yield b"second"


async def later_parts() -> AsyncIterator[bytes]:
    for part in parts():
        yield part


SENT = b"first, second"


@pytest.mark.parametrize("kind", ["bytes", "text", "iterator", "file"])
def test_a_body_of_any_kind_is_sent_again_as_it_was(client_name: str, kind: str) -> None:
    body: Any = {
        "bytes": SENT,
        "text": SENT.decode(),
        "iterator": later_parts() if client_name == "httpx-async" else parts(),
        "file": SENT if client_name == "httpx-async" else io.BytesIO(SENT),
    }[kind]
    with (
        scripted_server(DropConnection(), Respond(503), Respond()) as server,
        open_client(client_name) as client,
    ):
        assert client.post(server.url, body=body).status == 200
    assert [seen.body for seen in server.received] == [SENT] * 3
    assert len(set(server.keys)) == 1
    framing = [bool(seen.header_values("Transfer-Encoding")) for seen in server.received]
    assert len(set(framing)) == 1


def test_a_file_is_sent_from_its_current_position() -> None:
    file = io.BytesIO(b"not this" + SENT)
    file.seek(8)
    with scripted_server(DropConnection(), Respond()) as server, open_client("requests") as client:
        client.post(server.url, body=file)
    assert [seen.body for seen in server.received] == [SENT] * 2


@pytest.mark.parametrize("kind", ["bytes", "iterator"])
def test_a_body_beyond_body_max_is_refused_before_anything_is_sent(
    client_name: str, kind: str
) -> None:
    iterator = later_parts() if client_name == "httpx-async" else parts()
    body: Any = SENT if kind == "bytes" else iterator
    with (
        scripted_server(Respond()) as server,
        open_client(client_name, body_max=len(SENT) - 1) as client,
    ):
        with pytest.raises(NotSent, match="body_max"):
            client.post(server.url, body=body)
        assert server.received == []
        assert client.post(server.url, body=SENT[:-1]).status == 200


def test_a_body_of_body_max_bytes_is_sent(client_name: str) -> None:
    iterator = later_parts() if client_name == "httpx-async" else parts()
    with (
        scripted_server(Respond()) as server,
        open_client(client_name, body_max=len(SENT)) as client,
    ):
        assert client.post(server.url, body=iterator).status == 200


def test_a_form_with_a_file_is_sent_again_as_it_was() -> None:
    with scripted_server(DropConnection(), Respond()) as server, open_client("httpx") as client:
        assert isinstance(client, HttpxClient)
        client.httpx_client.post(server.url, files={"f": ("a.txt", b"content")}, data={"a": "b"})
    first, again = server.received
    assert first.body == again.body
    assert first.header_values("Content-Type") == again.header_values("Content-Type")
    assert b"content" in first.body


def test_the_async_transport_takes_a_body_that_sync_and_async_can_read() -> None:
    seen: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(await request.aread())
        return httpx.Response(503 if len(seen) == 1 else 200, headers={"Retry-After": "0"})

    async def ask() -> None:
        transport = AsyncIdempotentTransport(
            httpx.MockTransport(answer), retry=Retry(base="1ms", cap="1ms")
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post("http://shop/", files={"f": ("a.txt", b"content")})

    asyncio.run(ask())
    first, again = seen
    assert first == again
    assert b"content" in first


# --- refused bodies ------------------------------------------------------------------------------


class Pipe:
    """A stream that cannot be read again."""

    def __init__(self) -> None:
        self._file = io.BytesIO(SENT)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 4) if size >= 0 else 4)


@pytest.mark.parametrize("kind", ["file", "undeclared file", "parts", "pipe"])
def test_a_body_that_was_refused_is_never_sent_in_part(kind: str) -> None:
    body: Any = {
        "file": io.BytesIO(SENT),
        "undeclared file": io.BytesIO(SENT),
        "parts": (SENT[at : at + 3] for at in range(0, len(SENT), 3)),
        "pipe": Pipe(),
    }[kind]
    request = requests.Request("POST", "http://shop/", data=body).prepare()
    if kind == "undeclared file":
        del request.headers["Content-Length"]
    with scripted_server(Respond()) as server, open_client("requests", body_max=5) as client:
        request.url = server.url + "/"
        assert isinstance(client, RequestsClient)
        with pytest.raises(NotSent, match="body_max"):
            client.session.send(request)
        client.session.mount("http://", IdempotentAdapter(clock=FakeRetryClock()))
        if "file" in kind:
            assert client.session.send(request).status_code == 200
            assert [seen.body for seen in server.received] == [SENT]
        else:
            with pytest.raises(NotSent, match="Make the request anew"):
                client.session.send(request)
            assert server.received == []


def test_a_file_that_declares_too_many_bytes_is_not_read() -> None:
    class Unread(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise AssertionError("read")

    with open_client("requests", body_max=5) as client, pytest.raises(NotSent, match="body_max"):
        client.post("http://shop/", body=Unread(SENT))
