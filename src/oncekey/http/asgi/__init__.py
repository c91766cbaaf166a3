"""ASGI: a middleware that guards any app, and what FastAPI's guard shares with it.

app.add_middleware(IdempotencyMiddleware, once=AsyncOnce(url), caller=verified_account_id)
"""

from oncekey.http.asgi.lifespan import draining
from oncekey.http.asgi.middleware import IdempotencyMiddleware, attempt_of
from oncekey.http.unhandled_requests import leave_unstored

__all__ = ["IdempotencyMiddleware", "attempt_of", "draining", "leave_unstored"]
