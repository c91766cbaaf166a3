"""Processes that are killed while they consume into an inbox and publish from an outbox.

    python -m tests.fault.killed_outbox_worker at-points <url> <directory>
    python -m tests.fault.killed_outbox_worker publish <url> <file> <lease>

test_outbox_kills.py runs it. `at-points` forks one child per point: before and after every message
to PostgreSQL or before every statement of SQLite, and around the acknowledgement and each message
that is published. Each child handles one message of a queue, acknowledges it and publishes, and is
killed at its point. It prints the keys as JSON. `publish` publishes until it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from tests.fault.killed_postgres_transaction import was_killed, watch_messages

from oncekey import Once
from oncekey.queues.inbox import Inbox
from oncekey.queues.outbox import Outbox, OutboxPublisher, OutgoingMessage

POINTS_MAX = 400
INSERT = {"sqlite": "INSERT INTO orders VALUES (?)", "postgresql": "INSERT INTO orders VALUES (%s)"}


class Killer:
    """Kills this process at its point number `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.is_armed = False

    def point(self) -> None:
        if not self.is_armed:
            return
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, call: Callable[[], Any]) -> Any:
        self.point()
        result = call()
        self.point()
        return result

    def watch(self, url: str) -> None:
        """Make points of what is sent to the database."""
        if url.startswith("postgresql"):
            watch_messages("psycopg", self.around)
            return
        connect = sqlite3.connect

        def watched(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **options)
            connection.set_trace_callback(lambda sql: self.point())
            return connection

        sqlite3.connect = watched  # type: ignore[assignment]


class Shop:
    """Handles messages of a queue in an inbox; each order writes one row and one message. Files
    stand for the queue's acknowledgements and for the broker that is published to."""

    def __init__(self, url: str, directory: Path, killer: Killer) -> None:
        self.url = url
        self.directory = directory
        self.killer = killer
        self.once = Once(url)
        self.outbox = Outbox(self.once)
        self.inbox = Inbox(self.once, self.connect)
        self.publisher = OutboxPublisher(self.once, self.publish, lease="1h")

    def connect(self) -> Any:
        if self.url.startswith("postgresql"):
            return psycopg.connect(self.url)
        return sqlite3.connect(self.url.removeprefix("sqlite:///"))

    def handle(self, key: str) -> bool:
        """Handle and acknowledge one delivery; True if its outcome was replayed."""
        insert = INSERT[self.url.partition(":")[0]]

        def body(attempt: Any) -> None:
            attempt.connection.execute(insert, (key,))
            self.outbox.add(attempt.connection, "mails", key, order_group=key)

        result = self.inbox.run("order", key, body)
        self.killer.around(lambda: append(self.directory / "acknowledged", key))
        return result.replayed

    def publish(self, message: OutgoingMessage) -> None:
        line = f"{message.text} {message.id}"
        self.killer.around(lambda: append(self.directory / "published", line))


def append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode() + b"\n")
    os.close(file)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def run_killed_at(url: str, directory: Path, key: str, at: int) -> None:
    killer = Killer(at)
    killer.watch(url)
    shop = Shop(url, directory, killer)
    shop.once.get("order", "-")
    # What earlier children left is not due, so that this one handles its own message only.
    with closing(shop.connect()) as connection:
        table = "oncekey.outbox" if url.startswith("postgresql") else "oncekey_outbox"
        connection.execute(f"UPDATE {table} SET due_at = {2**62}")  # noqa: S608
        connection.commit()
    killer.is_armed = True
    shop.handle(key)
    shop.publisher.publish_due()
    killer.is_armed = False
    shop.once.close()


def at_points(url: str, directory: Path) -> list[str]:
    """Kill a child at every point; the keys of the killed ones."""
    keys: list[str] = []
    for number in range(POINTS_MAX):
        key = f"order-{number:03}"
        pid = os.fork()
        if pid == 0:
            try:
                run_killed_at(url, directory, key, number)
            except BaseException as error:
                sys.stderr.write(f"{key}: {error!r}\n")
                os._exit(1)
            os._exit(0)
        if not was_killed(pid):
            return [*keys, key]
        keys.append(key)
    raise AssertionError("no child came to its end")


def publish_until_killed(url: str, path: Path, lease: str) -> None:
    def publish(message: OutgoingMessage) -> None:
        append(path, f"{message.order_group} {message.text} {message.id}")

    OutboxPublisher(url, publish, lease=lease, batch=20, poll="10ms").run()


def main(what: str, url: str, path: str, *rest: str) -> None:
    if what == "publish":
        publish_until_killed(url, Path(path), *rest)
        return
    sys.stdout.write(json.dumps(at_points(url, Path(path))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
