"""Guarded FastAPI routes: a key is claimed only after authentication and validation.

    idempotency = Idempotency(once, caller=Depends(current_account))
    idempotency.attach(app)

    @app.post("/charges")
    @idempotency.guard(lease="30s")
    async def charge(order: Order, attempt: CurrentAttempt): ...

`install` puts the plain ASGI middleware around a whole app instead.
"""

from __future__ import annotations

from oncekey.http.missing_dependency import needs

with needs("fastapi"):
    from oncekey.http.fastapi.endpoint import CurrentAttempt, OptionalAttempt
    from oncekey.http.fastapi.idempotency import Idempotency
    from oncekey.http.fastapi.installation import install
    from oncekey.http.fastapi.openapi import describe

__all__ = ["CurrentAttempt", "Idempotency", "OptionalAttempt", "describe", "install"]
