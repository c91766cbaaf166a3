"""`oncekey consume` and `oncekey redrive` on a real broker, Redis Streams on Valkey: a consumer
that is killed in its handler, a dead letter, and its way back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from tests.cli.command_runner import Running, Start
from tests.cli.conftest import Command
from tests.cli.queue_shop import environment_of
from tests.support.redis_stores import valkey

from oncekey import Once
from oncekey.cli.output import ExitCode
from oncekey.queues.redrive import ERROR_HEADER

SHOP = """
import os, time
from pathlib import Path
from oncekey import Once, Terminal
from oncekey.queues.redis_streams import RedisStreamConsumer
from oncekey.stores.sqlite import SQLiteStore

folder = Path("{folder}")
late = 3_600_000_000 if "LATE" in os.environ else 0
store = SQLiteStore(folder / "keys.db", clock=lambda: time.time_ns() // 1_000 - late)

def ship(message):
    order = message.json()
    if (folder / "gate").exists():
        print("begun", flush=True)
        with open(folder / "gate") as gate:
            gate.read()
    if order.get("needs") and not (folder / order["needs"]).exists():
        raise Terminal("the van is broken")
    with open(folder / "shipped", "a") as shipped:
        print(order["id"], file=shipped)

once = Once(store)
consumer = RedisStreamConsumer(
    once, ship, "{stream}", server="{url}", start="first",
    name="ship", key="json:$.id", retry_safe=True, lease="1m", retention="1h",
)
"""


@pytest.fixture
def stream() -> Iterator[str]:
    name = f"orders-{uuid4().hex[:12]}"
    yield name
    with redis.Redis.from_url(valkey().url()) as client:
        client.delete(name, f"{name}:dead", f"{name}:parked")


@pytest.fixture
def shop(tmp_path: Path, stream: str) -> Path:
    text = SHOP.format(folder=tmp_path, stream=stream, url=valkey().url())
    (tmp_path / "valkey_shop.py").write_text(text)
    return tmp_path


def send(stream: str, body: str) -> None:
    with redis.Redis.from_url(valkey().url()) as client:
        client.xadd(stream, {"body": body})


def figures_until(running: Running, **wanted: int) -> dict[str, Any]:
    """The figures once they have come so far."""
    while True:
        found: dict[str, Any] = running.round()
        if found["event"] == "figures" and all(found[k] >= v for k, v in wanted.items()):
            return found


def consume(start: Start, shop: Path, **environment: str) -> Running:
    command = ("consume", "valkey_shop:consumer", "--json", "--every", "100ms")
    return start(*command, **environment_of(shop), **environment)


def end_lease_of_messages(stream: str) -> None:
    """Let every message that a consumer holds be taken again, as when its lease is over."""
    with redis.Redis.from_url(valkey().url()) as client:
        due = f"{stream}:oncekey:ship"
        held = client.zrange(due, 0, -1)
        assert len(held) == 1
        client.zadd(due, dict.fromkeys(held, 0), xx=True)


def test_i1_a_killed_consumer_s_message_is_handled_by_the_next_one(
    start: Start, shop: Path, stream: str
) -> None:
    """No lease is waited for: the clock of the first one's store is an hour behind, and the broker
    is told that its hold is over."""
    os.mkfifo(shop / "gate")
    send(stream, '{"id": "o1"}')
    first = consume(start, shop, LATE="1")
    while first.line() != "begun\n":
        pass
    first.end(signal.SIGKILL)
    (shop / "gate").unlink()
    end_lease_of_messages(stream)
    send(stream, '{"id": "o1"}')  # the producer, too, was not sure
    second = consume(start, shop)
    figures_until(second, removed=2)
    assert second.end(signal.SIGTERM) == ExitCode.OK
    assert (shop / "shipped").read_text().split() == ["o1"]
    with Once(f"sqlite:///{shop}/keys.db") as once:
        status = once.get("ship", "o1", scope=f"ship/{stream}")
        assert status is not None
        assert (status.state, status.attempt, status.route) == ("succeeded", 2, stream)


def test_a_dead_letter_is_redriven_and_handled_once(
    start: Start, here: Command, shop: Path, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stream, '{"id": "o1", "needs": "van"}')
    running = consume(start, shop)
    figures_until(running, dead_letters=1)
    with redis.Redis.from_url(valkey().url(), decode_responses=True) as client:
        ((_, fields),) = client.xrange(f"{stream}:dead")
    assert fields[ERROR_HEADER] == "Terminal: the van is broken"
    (shop / "van").write_text("mended")
    send(stream, '{"id": "o1", "needs": "van"}')  # an ordinary duplicate opens nothing
    figures_until(running, dead_letters=2)
    assert not (shop / "shipped").exists()
    command = ("redrive", "valkey_shop:consumer", "--id", "INC-7", "--yes", "--json")
    monkeypatch.syspath_prepend(shop)
    moved = here(*command)
    sys.modules.pop("valkey_shop").once.close()
    assert (moved.code, moved.data["moved"], moved.data["queue"]) == (ExitCode.OK, 2, stream)
    figures_until(running, removed=2)
    assert running.end(signal.SIGTERM) == ExitCode.OK
    assert (shop / "shipped").read_text().split() == ["o1"]
