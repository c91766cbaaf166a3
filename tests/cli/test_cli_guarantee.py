"""`oncekey guarantee`: what a store guarantees, and an operator's word about a replica."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.conftest import Command
from tests.support.redis_stores import valkey

from oncekey import Once
from oncekey.cli import command_input
from oncekey.cli.output import ExitCode
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.replica_sightings import Replica, pack_replica

NAME = "10.0.0.7:6379"
SEEN_AT = 1_767_323_040_000_000  # 2026-01-02 03:04


@pytest.fixture
def url() -> str:
    """A store whose processes have seen a replica that is not attached any more."""
    prefix = f"cli-{uuid4().hex[:12]}"
    value = b"%d %d %s" % (SEEN_AT, SEEN_AT, pack_replica(Replica(NAME)))
    key = Keyspace(prefix).replicas.decode()
    valkey().execute("HSET", key, f"replica {NAME}", value.decode())
    return f"{valkey().url()}?prefix={prefix}"


def test_guarantee_says_which_replica_lowers_it_and_what_to_do(here: Command, url: str) -> None:
    ran = here("guarantee", url)
    assert ran.code == ExitCode.OK
    said = " ".join(ran.out.split())
    assert f"best effort: an asynchronous replica was attached, '{NAME}'" in said
    assert f"oncekey guarantee --forget {NAME}" in said
    assert "last seen 2026-01-02 03:04:00 UTC" in said
    found = here("guarantee", url, "--json").data
    assert (found["guarantee"], found["clock"]) == ("best effort", "server")
    assert found["replicas"] == [
        {
            "name": NAME,
            "address": "",
            "slots": [],
            "first_seen": "2026-01-02T03:04:00+00:00",
            "last_seen": "2026-01-02T03:04:00+00:00",
        }
    ]
    assert here("doctor", url).code == ExitCode.UNHEALTHY


def test_forget_raises_the_guarantee_and_says_who_and_why(here: Command, url: str) -> None:
    word = ("--by", "ana", "--why", "host given back")
    ran = here("guarantee", url, "--forget", NAME, *word, "--yes", "--json")
    assert (ran.code, ran.data["forgot"], ran.data["guarantee"]) == (ExitCode.OK, NAME, "fenced")
    (forgotten,) = ran.data["forgotten"]
    assert forgotten["name"] == NAME
    assert "ana forgot it: host given back (seen 2026-01-02 03:04 UTC" in forgotten["notes"][0]
    again = here("guarantee", url, "--forget", NAME, *word, "--yes")
    assert (again.code, f"no replica '{NAME}' was seen" in again.err) == (ExitCode.USAGE, True)
    assert "host given back" in here("guarantee", url).out


def test_forget_asks_and_changes_nothing_without_a_yes(
    here: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = ("--by", "ana", "--why", "gone")
    assert "give --yes" in here("guarantee", url, "--forget", NAME, *word).err
    assert "give --by and --why" in here("guarantee", url, "--forget", NAME, "--yes").err
    asked: list[str] = []
    monkeypatch.setattr(command_input, "can_ask", lambda: True)
    monkeypatch.setattr(command_input, "ask", asked.append)
    ran = here("guarantee", url, "--forget", NAME, *word)
    assert (ran.code, asked) == (ExitCode.FAILED, [f"Forget {NAME}?"])
    assert "RUN a second time" in ran.out
    assert here("guarantee", url, "--json").data["guarantee"] == "best effort"


def test_a_store_without_replicas_has_a_guarantee_and_nothing_to_forget(
    here: Command, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Once(url) as once:
        once.run("op", "k", lambda attempt: None)
    found = here("guarantee", url, "--json").data
    assert (found["guarantee"], found["replicas"]) == ("transactional", [])
    ran = here("guarantee", url, "--forget", "x", "--by", "a", "--why", "b", "--yes")
    assert (ran.code, "does not offer this" in ran.err) == (ExitCode.USAGE, True)
    moving = here("guarantee", f"moving://{url},{url}2")
    assert (moving.code, "Name one of them" in moving.err) == (ExitCode.USAGE, True)
