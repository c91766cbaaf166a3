"""What the services of the fleet share: their addresses, their callers and their ledgers.

All settings come from the environment, because servers import their apps. A ledger is a table in
the database file of its service's keys, so that a row and its key can commit together. It has no
unique column but the row's number, so an effect that happens twice leaves two rows.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from oncekey import Once
from oncekey.core.events import Event

SERVICES: Final = ("inventory", "payments", "notifications", "checkout")
LEDGERS: Final = {"inventory": "reservation", "payments": "charge", "notifications": "receipt"}
LEASE: Final = "1s"
WAIT: Final = "5s"
BUSY_SECONDS: Final = 30
LAST_ORDER_FILE: Final = "last-order"  # the client waits for it before its last order

# Ways to break the fleet, for the tests that show that the audit can fail.
RANDOM_KEYS: Final = "random-keys"  # every try has a new key
NO_REQUEST: Final = "no-request"  # steps do not store their requests
NO_TRANSACTION: Final = "no-transaction"  # rows are not committed together with their keys

CALLERS: Final = {"Bearer shopper": "shopper", "Bearer checkout": "checkout"}
INSERT: Final = "INSERT INTO ledger (order_id, cents) VALUES (?, ?)"


def folder() -> Path:
    return Path(os.environ["FLEET_FOLDER"])


def sabotage() -> str:
    return os.environ.get("FLEET_SABOTAGE", "")


def die_once(process: str) -> None:
    """Kill this process here, the first time that it comes here, in a fleet with forced kills."""
    if not os.environ.get("FLEET_DIES"):
        return
    try:
        death_mark(folder(), process).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def death_mark(fleet: Path, process: str) -> Path:
    """Return the file that shows that a process has died where it should."""
    return fleet / f"{process}.died"


def port_of(service: str) -> int:
    """Return the port of the proxy in front of a service."""
    return int(os.environ[f"FLEET_{service.upper()}"])


def database(service: str) -> Path:
    return folder() / f"{service}.db"


def store_url(service: str) -> str:
    return f"sqlite:///{database(service)}?busy_timeout={BUSY_SECONDS}s"


def make_ledger(service: str) -> None:
    """Create the ledger of a service, and its store's tables."""
    Once(store_url(service)).close()  # creates its tables before any transaction is joined
    with closing(sqlite3.connect(database(service), timeout=BUSY_SECONDS)) as db, db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS ledger "
            "(id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT, cents INTEGER)"
        )


def row_id(service: str, number: int | None) -> dict[str, Any]:
    """Return a service's response, which names the row that it has written."""
    return {"id": f"{LEDGERS[service]}-{number}"}


def log_events(once: Any, service: str) -> None:
    """Append every event of an engine to a file, one line each, unbuffered because of the kills."""
    file = os.open(folder() / f"{service}.events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: Event) -> None:
        os.write(file, f"{event.kind} {event.operation} {event.tag}\n".encode())

    os.write(file, b"started - -\n")
    once.subscribe(write)
