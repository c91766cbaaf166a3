"""Modules with consumers, as users write them, for the tests of `consume` and `redrive`."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from uuid import uuid4

# A consumer of an embedded queue. `ship` waits at the file `gate` if an order says so, and the
# queue answers soon, so that a stop does not wait for a long poll.
SHOP = """
import os, sys, threading
from pathlib import Path
from oncekey import AsyncOnce, NotStarted, Once, Terminal
from oncekey.queues import (
    AsyncConsumer, AsyncMemoryBroker, BrokerFacts, BrokerUnavailable, Consumer, MemoryBroker
)

folder = Path("{folder}")
ran = []

class QuickBroker(MemoryBroker):
    def receive(self, most, wait, lease):
        return super().receive(most, min(wait, 0.02), lease)

def ship(message):
    order = message.json()
    ran.append(order["id"])
    if order.get("wait"):
        print("begun", order["id"], flush=True)
        with open(folder / "gate") as gate:
            gate.read()
    if order.get("fail"):
        raise Terminal(order["fail"])
    if order.get("later") and ran.count(order["id"]) == 1:
        raise NotStarted(order["later"])
    with open(folder / "shipped", "a") as shipped:
        print(order["id"], file=shipped)

async def ship_async(message):
    import asyncio
    await asyncio.to_thread(ship, message)

orders, mails = QuickBroker("orders"), QuickBroker("mails")
once = Once("sqlite:///{folder}/keys.db")
async_once = AsyncOnce("sqlite:///{folder}/keys.db")
options = dict(key="json:$.id", concurrency=1, backoff="10ms", stop_timeout="{stop_timeout}")
consumer = Consumer(once, ship, orders, name="ship", **options)
mailer = Consumer(once, ship, mails, name="mail", **options)
async_consumer = AsyncConsumer(
    async_once, ship_async, AsyncMemoryBroker(orders), name="ship", **options
)

def stop_after(many, *consumers):
    settled = []
    for one in consumers:
        def on_settled(message, disposition, one=one):
            settled.append(disposition)
            if len(settled) == many:
                for each in consumers:
                    each.stop()
        one.on_settled = on_settled

"""


@contextmanager
def imported(folder: Path, more: str = "", stop_timeout: str = "30s") -> Iterator[ModuleType]:
    """A module of its own in this process, importable by the command while this is open."""
    with importable(folder, more, stop_timeout) as name:
        yield importlib.import_module(name)


@contextmanager
def importable(folder: Path, more: str = "", stop_timeout: str = "30s") -> Iterator[str]:
    """The name of such a module that nobody has imported yet: the command is the first."""
    name = f"shop_{uuid4().hex[:8]}"
    write_shop(folder, name, more, stop_timeout)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield name
    finally:
        sys.path.remove(str(folder))
        shop = sys.modules.pop(name, None)
        if shop is not None:
            shop.once.close()
            asyncio.run(shop.async_once.close())


def write_shop(folder: Path, name: str, more: str, stop_timeout: str = "30s") -> None:
    text = SHOP.format(folder=folder, stop_timeout=stop_timeout) + more
    (folder / f"{name}.py").write_text(text)


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of a command that imports modules of this folder."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])])}
