"""Payments: Flask. Its views are fenced: one that dies is run again once its lease is over.

So what a view does is an operation of its own, in one transaction with its row, under a child key:
a view that runs again finds it done.
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
common.tell_facts(once, NAME)
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
        return common.made(NAME, cursor.lastrowid)

    with closing(sqlite3.connect(common.database(NAME), timeout=common.BUSY_SECONDS)) as db, db:
        if common.sabotage() == common.NO_TRANSACTION:
            return insert(None), 201
        inside = once.in_transaction(db)
        return inside.run("ledger", attempt.child_key("ledger"), insert, request=order).value, 201
