"""Flask: views or whole apps guarded by idempotency keys.

Idempotency(app, once=Once(url), caller=lambda: g.account)

@app.post("/charges")
@idempotent(keep="7d")
def charge(): ...
"""

from oncekey.http.missing_dependency import needs

with needs("flask"):
    from oncekey.http.flask.idempotency import Idempotency, current_attempt, idempotent

__all__ = ["Idempotency", "current_attempt", "idempotent"]
