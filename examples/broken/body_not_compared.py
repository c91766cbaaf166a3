"""Body not compared: a key answers for any body.

What is wrong: the record says which key was used, but not for what.
Where it comes from: INSERT INTO idempotency_keys (key, status, expires_at), in code that is called
production-ready; and canonical field lists in which the field that matters was forgotten.
What it costs: a client that reuses a key by mistake is told that its second, different payment was
made. It was not.
How the verifier shows it: it sends another body with a used key: instead of 422 it gets the
response to the first body.
"""

from __future__ import annotations

from examples.broken.guard import Guard
from fastapi import Request


class BodyNotCompared(Guard):
    def hash_request(self, request: Request, body: bytes) -> str:
        return super().hash_request(request, b"")
