"""A fake AWS on the loopback: it takes calls of ECS, DynamoDB and EC2 and records their tokens."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

XML = b'<RunInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"/>'


class FakeAws:
    """`tokens` are those of the calls that came, in order."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        # The statuses of the next responses; 0 closes the connection without one.
        self.failing: list[int] = []
        self._lock = threading.Lock()
        aws = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_form = self.headers["Content-Type"].startswith("application/x-www-form")
                status = aws.record(_token(body, is_form))
                if not status:
                    self.close_connection = True
                    return
                content = XML if is_form else b"{}"
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def record(self, token: str | None) -> int:
        with self._lock:
            self.tokens.append(token)
            return self.failing.pop(0) if self.failing else 200

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _token(body: bytes, is_form: bool) -> str | None:
    if is_form:
        return parse_qs(body.decode()).get("ClientToken", [None])[0]
    call = json.loads(body)
    names = ("clientToken", "ClientRequestToken")
    return next((call[name] for name in names if name in call), None)
