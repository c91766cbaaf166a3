"""A payment provider without idempotency keys, as a separate process; see test_probe_kills.py.

python keyless_provider.py <port>

POST /charges               charges every time, and stores the caller's reference
GET /charges?reference=...  returns the charges with that reference; all without one
GET /idle                   returns when no other request is in progress
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TIMEOUT_SECONDS = 30


class Provider(ThreadingHTTPServer):
    """The server with its charges, which counts the open connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.charges: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.open = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        # Connections are counted here, because here they arrive one by one: a request for /idle is
        # counted after every connection that was opened before it.
        with self.changed:
            self.open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client was killed
            super().handle_error(request, client_address)

    def charge(self, order: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            charge = {**order, "id": f"ch_{len(self.charges) + 1}"}
            self.charges.append(charge)
        return charge

    def wait_idle(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open == 1, TIMEOUT_SECONDS)


class Handler(BaseHTTPRequestHandler):
    """The three endpoints."""

    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(201, self.server.charge(json.loads(body)))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/idle":
            self._send(200 if self.server.wait_idle() else 503, {})
            return
        wanted = parse_qs(url.query).get("reference")
        found = [c for c in self.server.charges if wanted is None or c["reference"] in wanted]
        self._send(200, found)

    def _send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    Provider(int(sys.argv[1])).serve_forever()
