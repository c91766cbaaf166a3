"""Payments, a Flask app: a view whose process was killed runs again when its lease has ended.

Therefore the view writes its row in an operation of its own, under a child key and in one
transaction with the row. A view that runs again gets that operation's result as a replay.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from flask import Flask, request
from tests.fleet import common

from oncekey import Once, Policy
from oncekey.http.flask import Idempotency, current_attempt, idempotent

NAME = "payments"

common.make_ledger(NAME)

app = Flask(NAME)
once = Once(common.store_url(NAME), policy=Policy(lease=common.LEASE, wait=common.WAIT))
common.log_events(once, NAME)
Idempotency(
    app,
    once=once,
    caller=lambda: common.CALLERS.get(request.headers.get("Authorization", "")),
)


@app.post("/charges")
@idempotent(retry_safe=True)
def charge() -> Any:
    attempt, order = current_attempt(), request.get_json()
    assert attempt is not None

    def insert(_: Any) -> dict[str, Any]:
        cursor = db.execute(common.INSERT, (order["order"], order["cents"]))
        return common.row_id(NAME, cursor.lastrowid)

    with closing(sqlite3.connect(common.database(NAME), timeout=common.BUSY_SECONDS)) as db, db:
        if common.sabotage() == common.NO_TRANSACTION:
            value = insert(None)
        else:
            tx = once.in_transaction(db)
            value = tx.run("ledger", attempt.child_key("ledger"), insert, request=order).value
    common.die_once(NAME)  # the row is committed, and the outcome of the view is not
    return value, 201
