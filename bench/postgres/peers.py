"""The peers, each as it does best here: fresh keys, a body that does nothing, many callers.

idemkit runs on its asyncio API, with a connection for each caller: its blocking API drives the
same loop and was no faster, and pools from 8 to 64 were alike (its commits wait for each other's
NOTIFY). exactly-once has a store, and so a connection, per thread, which is twice as fast as one
that all share. dbos runs a workflow without steps, the smallest thing it keeps, on threads; its
asyncio API was the same.

Every slice opens what it needs, warms it up, measures and closes it again, so that no peer's
threads or connections are there while another is measured.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable

from dbos import DBOS, SetWorkflowID
from exactly_once import once as exactly_once
from exactly_once.stores.postgres import PostgresStore as ExactlyOnceStore
from idemkit import MethodConfig, idempotent
from idemkit.backends.postgres import PostgresBackend, init_pg
from tests.support.servers.postgres import Postgres

from bench.postgres import load

CALLERS = 64
OUTCOME = {"id": "ch_1"}


def peers(server: Postgres) -> dict[str, Callable[[int], float]]:
    """By name: a slice, which gives the microseconds per lifecycle."""
    urls = {name: server.create_database(name) for name in ("idemkit", "exactly_once", "dbos")}
    asyncio.run(init_pg(urls["idemkit"]))
    ExactlyOnceStore(urls["exactly_once"]).close()  # makes its table; two at once would collide
    warnings.filterwarnings("ignore", "idemkit")  # that no scope is set: there is one caller
    return {
        f"idemkit, {CALLERS} tasks": lambda _: asyncio.run(_idemkit(urls["idemkit"])),
        f"exactly-once, {CALLERS} threads": lambda _: _exactly_once(urls["exactly_once"]),
        f"dbos, {CALLERS} threads": lambda _: _dbos(urls["dbos"]),
    }


async def _idemkit(url: str) -> float:
    backend = PostgresBackend.from_url(url, min_size=CALLERS, max_size=CALLERS)

    @idempotent(backend=backend, config=MethodConfig(key_fields=["order"]))
    async def charge(order: str, cents: int) -> dict[str, str]:
        return OUTCOME

    async with backend:
        return await load.tasks(CALLERS, lambda key: charge(order=key, cents=100))


def _exactly_once(url: str) -> float:
    mine = threading.local()
    stores = []

    def call(key: str) -> None:
        if not hasattr(mine, "charge"):
            store = ExactlyOnceStore(url)
            stores.append(store)

            @exactly_once(store, key=lambda order: order)
            def charge(order: str) -> dict[str, str]:
                return OUTCOME

            mine.charge = charge
        mine.charge(key)

    try:
        return load.threads(CALLERS, call)
    finally:
        for store in stores:
            store.close()


def _dbos(url: str) -> float:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": CALLERS,
            "max_executor_threads": 2 * CALLERS,
            "log_level": "ERROR",
        }
    )

    @DBOS.workflow()
    def charge(order: str) -> dict[str, str]:
        return OUTCOME

    def call(key: str) -> None:
        with SetWorkflowID(key):
            charge(key)

    try:
        DBOS.launch()
        return load.threads(CALLERS, call)
    finally:
        DBOS.destroy(destroy_registry=True)
