"""A payment provider that knows no idempotency keys; a process of its own, see test_probe_kills.py.

python keyless_provider.py <port>

POST /charges               charges, every time, and remembers the caller's reference
GET /charges?reference=...  what was charged under it; without a reference, everything
GET /idle                   answers when nothing else is under way any more
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATIENCE_SECONDS = 30


class Provider(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.charges: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self.open = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        # Counted here, where connections are taken one by one in the order they came: whoever
        # asks whether all is idle, comes after everybody who came before.
        with self.changed:
            self.open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the other side was killed
            super().handle_error(request, client_address)

    def charge(self, order: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            made = {**order, "id": f"ch_{len(self.charges) + 1}"}
            self.charges.append(made)
        return made

    def wait_idle(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open == 1, PATIENCE_SECONDS)


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, self.server.charge(json.loads(body)))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/idle":
            self._answer(200 if self.server.wait_idle() else 503, {})
            return
        wanted = parse_qs(url.query).get("reference")
        found = [c for c in self.server.charges if wanted is None or c["reference"] in wanted]
        self._answer(200, found)

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    Provider(int(sys.argv[1])).serve_forever()
