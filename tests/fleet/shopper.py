"""The client process: it places orders and stores the responses.

python -m tests.fleet.shopper <orders>

After a kill it is started again and continues. Its keys are in a journal, by the orders' names, so
an order that may have been placed is sent again under its key. That includes an order whose
response had come but was not stored before the kill. The client places its last order only when the
kills are over, so every kill happens while there is work.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from tests.fleet import common

from oncekey.client import IdempotentTransport, Journal, RetriesExhausted, Retry, delivery_of

THREADS = 4
PAUSE_SECONDS = 0.005
RETRY = Retry(attempts=100, deadline="60s", base="20ms", cap="250ms")


class Responses:
    """The responses to the orders, in a file."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS responses (order_id TEXT, body TEXT, replayed INT)"
        )
        self._lock = threading.Lock()

    def known(self) -> set[str]:
        return {row[0] for row in self._db.execute("SELECT order_id FROM responses")}

    def add(self, order: str, body: bytes, *, replayed: bool) -> None:
        row = (order, body.decode(), replayed)
        with self._lock:
            self._db.execute("INSERT INTO responses VALUES (?, ?, ?)", row)


def place(http: httpx.Client, order: str, responses: Responses) -> None:
    url = f"http://127.0.0.1:{common.port_of('checkout')}/checkouts"
    while True:
        try:
            body = {"order": order, "cents": 500}
            response = http.post(url, json=body, extensions={"oncekey": {"intent": order}})
        except RetriesExhausted:
            continue  # the journal has the key of the order
        if response.status_code == 201:
            delivery = delivery_of(response)
            assert delivery is not None
            common.die_once("shopper")  # the response has come, and nobody will know
            responses.add(order, response.content, replayed=delivery.replayed)
            break
        if response.status_code < 500:
            raise RuntimeError(f"{order}: {response.status_code} {response.text}")
    log_progress([order])


def log_progress(orders: Iterable[str]) -> None:
    """Append orders to the file that paces the kills; an order may be in it twice."""
    file = os.open(common.folder() / "progress", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, "".join(f"{order}\n" for order in orders).encode())
    os.close(file)


def main(orders: int) -> None:
    responses = Responses(common.folder() / "responses.db")
    known = responses.known()
    log_progress(known)
    *most, last = [f"order-{n}" for n in range(1, orders + 1)]
    with Journal(common.folder() / "journal.db") as journal:
        transport = IdempotentTransport(retry=RETRY, journal=journal)
        headers = {"Authorization": "Bearer shopper"}
        with (
            httpx.Client(transport=transport, headers=headers, timeout=10) as http,
            ThreadPoolExecutor(THREADS) as pool,
        ):
            for _ in pool.map(lambda order: place(http, order, responses), _without(most, known)):
                pass
            while not (common.folder() / common.LAST_ORDER_FILE).exists():
                time.sleep(PAUSE_SECONDS)
            for order in _without([last], known):
                place(http, order, responses)


def _without(orders: list[str], known: set[str]) -> list[str]:
    return [order for order in orders if order not in known]


if __name__ == "__main__":
    main(int(sys.argv[1]))
