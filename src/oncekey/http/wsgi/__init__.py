"""WSGI: a middleware that guards any app, and what the guards of Flask and Django share with it.

app = IdempotencyWSGI(app, Once(url), caller=verified_account_id)
"""

from oncekey.http.unhandled_requests import leave_unstored
from oncekey.http.wsgi.middleware import IdempotencyWSGI, attempt_of

__all__ = ["IdempotencyWSGI", "attempt_of", "leave_unstored"]
