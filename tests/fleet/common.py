"""What the services of the fleet share: where they are, who may call them, their ledgers.

Everything comes by the environment, since servers import their apps. A ledger is in the file of its
service's keys, so that a row and its key can commit together. Nothing in it is unique but the row's
own number: what is done twice is there twice.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from oncekey import Once
from oncekey.core.events import Event

SERVICES: Final = ("inventory", "payments", "notifications", "checkout")
LEDGERS: Final = {"inventory": "reservation", "payments": "charge", "notifications": "receipt"}
LEASE: Final = "2s"
WAIT: Final = "5s"
BUSY_SECONDS: Final = 30
LAST: Final = "last"  # the file without which the client keeps its last order back

# How to break it, for the tests that show that the others can fail.
RANDOM_KEYS: Final = "random-keys"  # a new key with every try
NO_REQUEST: Final = "no-request"  # what is sent is made up anew by every run
NO_TRANSACTION: Final = "no-transaction"  # rows are not written with their keys

CALLERS: Final = {"Bearer shopper": "shopper", "Bearer checkout": "checkout"}
INSERT: Final = "INSERT INTO ledger (order_id, cents) VALUES (?, ?)"


def folder() -> Path:
    return Path(os.environ["FLEET_FOLDER"])


def sabotage() -> str:
    return os.environ.get("FLEET_SABOTAGE", "")


def port_of(service: str) -> int:
    """Where to reach a service: at the proxy before it."""
    return int(os.environ[f"FLEET_{service.upper()}"])


def database(service: str) -> Path:
    return folder() / f"{service}.db"


def store_url(service: str) -> str:
    return f"sqlite:///{database(service)}?busy_timeout={BUSY_SECONDS}s"


def make_ledger(service: str) -> None:
    Once(store_url(service)).close()  # its tables are there before anybody enlists in a transaction
    with closing(sqlite3.connect(database(service), timeout=BUSY_SECONDS)) as db, db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS ledger "
            "(id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT, cents INTEGER)"
        )


def made(service: str, number: int | None) -> dict[str, Any]:
    """What a service answers: the row it has written, by name."""
    return {"id": f"{LEDGERS[service]}-{number}"}


def tell_facts(once: Any, service: str) -> None:
    """Append every decision to a file, one line each, on its way even if the process is killed."""
    file = os.open(folder() / f"{service}.facts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(notice: Event) -> None:
        os.write(file, f"{notice.kind} {notice.operation} {notice.tag}\n".encode())

    os.write(file, b"started - -\n")
    once.subscribe(tell)
