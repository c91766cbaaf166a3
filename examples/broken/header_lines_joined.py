"""Header lines joined: two Idempotency-Key lines become one key that nobody sent.

What is wrong: a request with two keys is ambiguous, and it is run under a third one.
Where it comes from: servers and frameworks that join repeated header lines by a comma, as WSGI
does, before the application sees them; the application takes what it gets.
What it costs: a proxy that adds its own key to a request makes a new key of each pair. The retry,
which comes by another way with one of the two, finds nothing and pays again.
How the verifier shows it: it sends two lines: 201 instead of 400.
"""

from __future__ import annotations

from examples.broken.guard import BadKey, Guard
from fastapi import Request

KEY_MAX_CHARS = 255


class HeaderLinesJoined(Guard):
    def read_key(self, request: Request) -> str:
        lines = request.headers.getlist("idempotency-key")
        if len(lines) < 2:
            return super().read_key(request)
        key = ", ".join(lines)
        if len(key) > KEY_MAX_CHARS:
            raise BadKey("Send an Idempotency-Key of 1 to 255 visible characters.")
        return key
