"""Django and Django REST framework: a middleware, and a decorator of views.

    ONCEKEY = {"once": "sqlite:///keys.db", "caller": "shop.auth.account_of"}

    @idempotent(transaction=True)
    def charge(request): ...

Importing it needs no settings. From then on a guarded function that runs in an open transaction of
Django's is warned of (guarded_functions.py).
"""

from oncekey.http.missing_dependency import needs

with needs("django"):
    from oncekey.http.django import guarded_functions as _guarded_functions  # noqa: F401
    from oncekey.http.django.middleware import (
        IdempotencyMiddleware,
        attempt_of,
        idempotent,
        policy_page,
    )

__all__ = ["IdempotencyMiddleware", "attempt_of", "idempotent", "policy_page"]
