"""The commands on a real Valkey, and on one that is down, evicts or is missing."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from tests.cli.conftest import Command
from tests.support.redis_stores import valkey, valkey_cluster
from tests.support.servers import require
from tests.support.servers.redis_server import RedisServer

from oncekey import Once, Policy
from oncekey.cli.output import ExitCode
from oncekey.stores.redis import RedisStore

HOUR_US = 3_600_000_000
ON_A_STORE = [("sweep",), ("migrate",), ("show", "charge", "k"), ("list",), ("stats",), ("doctor",)]


@pytest.fixture
def prefix() -> str:
    return f"cli-{uuid4().hex[:12]}"


@pytest.fixture
def url(prefix: str) -> str:
    return f"{valkey().url()}?prefix={prefix}"


def test_migrate_creates_nothing_and_says_what_the_store_can_promise(
    here: Command, url: str, prefix: str
) -> None:
    ran = here("migrate", url, "--json")
    assert (ran.code, ran.data["version"], ran.data["applied"]) == (ExitCode.OK, 1, [])
    assert (ran.data["guarantee"], ran.data["clock"]) == ("fenced", "server")
    assert valkey().execute("KEYS", f"{prefix}:*") == []
    assert "no SQL to run" in here("migrate", url, "--sql").err
    assert here("migrate", url, "--sql").code == ExitCode.USAGE


def test_show_of_a_new_store_on_redis_does_not_bind_its_secret(
    here: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("show", url, "charge", "order-1").code == ExitCode.NOT_FOUND
    assert here("sweep", url).code == ExitCode.OK
    with Once(url, secret="correct horse battery") as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    ran = here("show", url, "charge", "order-1")
    assert (ran.code, "another secret" in ran.err) == (ExitCode.USAGE, True)
    look = ("show", url, "charge", "order-1", "--secret-env", "S", "--bodies", "--json")
    monkeypatch.setenv("S", "correct horse battery")
    assert here(*look).data["value"] == "paid"


def test_sweep_tier_removes_one_tier_only_on_redis(here: Command, url: str, prefix: str) -> None:
    clock = [time.time_ns() // 1_000 - 12 * HOUR_US]
    store = RedisStore(valkey().url(), prefix=prefix, clock=lambda: clock[0])
    policy = Policy(lease="1m", keep="1h", audit="2h")
    with Once(store, policy=policy, cache=0) as once:
        for _ in range(2):
            for number in range(3):
                once.run("charge", f"old-{number}", lambda attempt: None)
            clock[0] += int(1.5 * HOUR_US)
    ran = here("sweep", url, "--tier", "audit", "--limit", "2", "--json")
    assert (ran.data["removed"], ran.data["batches"]) == (3, 2)
    assert here("sweep", url, "--tier", "keys", "--once", "--json").data["removed"] == 3
    assert here("sweep", url, "--json").data["removed"] == 0


def test_the_commands_work_on_a_cluster(here: Command, prefix: str) -> None:
    url = f"{valkey_cluster().url()}?prefix={prefix}"
    with Once(url) as once:
        for number in range(5):
            once.run("charge", f"order-{number}", lambda attempt: "paid")
    keys = here("list", url, "--json").data["keys"]
    assert len(keys) == 5
    assert here("show", url, "--tag", keys[0]["tag"], "--json").data["state"] == "succeeded"
    assert here("stats", url, "--json").data["rows"] == 5
    assert here("sweep", url, "--json").data["removed"] == 0
    assert here("doctor", url).code == ExitCode.UNHEALTHY, "its replicas are asynchronous"


def test_doctor_reports_a_healthy_store(here: Command, url: str) -> None:
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    ran = here("doctor", url, "--json")
    assert (ran.code, ran.data["worst"]) == (ExitCode.OK, "info")
    assert here("doctor", url).out.startswith("Redis and Valkey\n")


@pytest.mark.parametrize("command", ON_A_STORE)
def test_a_redis_that_is_down_gives_one_line(here: Command, command: tuple[str, ...]) -> None:
    name, *rest = command
    ran = here(name, "redis://bob:hunter-two@127.0.0.1:1/0", *rest)
    assert (ran.code, ran.out) == (ExitCode.FAILED, "")
    assert "cannot be reached" in ran.err
    assert ran.err.count("\n") == 1
    assert "hunter" not in ran.err


@pytest.mark.parametrize(
    "bad",
    [
        "redis://bob:hunter-two@[host/0",
        "redis://bob:hunter-two@host:port/0",
        "redis://bob:hunter-two@host/0?failover=sometimes",
        "redis://bob:hunter-two@host/0?pool_size=many",
        "redis+sentinel://bob:hunter-two@host",
        "redis+cluster://bob:hunter-two@host/3",
    ],
)
@pytest.mark.parametrize("command", [("migrate",), ("doctor",), ("show", "charge", "k")])
def test_an_error_about_a_redis_url_does_not_show_its_password(
    here: Command, command: tuple[str, ...], bad: str
) -> None:
    name, *rest = command
    ran = here(name, bad, *rest)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "hunter" not in ran.err


def test_commands_say_why_a_server_that_evicts_is_refused(here: Command) -> None:
    evicting = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with require(lambda: RedisServer(settings=evicting)) as server:
        for name, *rest in (("migrate",), ("list",), ("show", "charge", "k")):
            ran = here(name, server.url(), *rest)
            assert (ran.code, "noeviction" in ran.err) == (ExitCode.USAGE, True)
        ran = here("doctor", server.url())
        assert ran.code == ExitCode.UNHEALTHY
        assert "a store there refuses to start" in ran.out
