"""A small HTTP server whose responses a test gives as plain functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    """A request as the server read it; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int
    document: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None

    def body(self) -> bytes:
        return json.dumps(self.document).encode() if self.raw is None else self.raw


@contextmanager
def serving(answer: Callable[[Received], Reply]) -> Iterator[str]:
    """Serve on a free port of the loopback; give the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(Received(self.command, self.path, headers, self.rfile.read(length)))
            body = reply.body()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815, the name is the base class's

        def log_message(self, format: str, *arguments: object) -> None:
            pass  # nobody reads it

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
