"""The commands on a real etcd: what operators see and decide there, as on the other stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.conftest import Command
from tests.support.etcd_stores import etcd

from oncekey import Once, Policy, Terminal
from oncekey.cli.output import ExitCode
from oncekey.core.commands import Claimed, Finish
from oncekey.core.identity import Identities
from oncekey.core.record import State
from oncekey.stores.etcd import is_same_store, open_blocking
from oncekey.testing.contract.store_case import claim, token


@pytest.fixture
def url() -> str:
    return etcd().url(f"cli-{uuid4().hex[:12]}")


@pytest.fixture
def shop(url: str) -> Iterator[str]:
    """A store with a charge, a failure and a key of unknown outcome."""
    with Once(url, raw_keys=True, policy=Policy(lease="1m")) as once:
        once.run("charge", "order-1", lambda attempt: {"charge": "ch_1"}, scope="acct_1")
        with pytest.raises(Terminal):
            once.run("charge", "order-2", _fail, scope="acct_1")
    store = open_blocking(url)
    unknown = Identities().identify("acct_1", "charge", "order-3")
    request = claim(unknown.id, token("own"), scope="acct_1", label="charge", key="order-3")
    (reply,) = store.apply([request])
    assert isinstance(reply, Claimed)
    store.apply([Finish(unknown.id, request.owner, reply.fence, State.UNKNOWN, b"")])
    yield url
    store.close()


def _fail(attempt: Any) -> Any:
    raise Terminal("the card was declined")


def test_a_prefix_without_a_store_is_not_made_one_by_looking(here: Command, url: str) -> None:
    for command in (("list", url), ("sweep", url), ("show", url, "charge", "order-1")):
        ran = here(*command)
        assert ran.code == ExitCode.USAGE
        assert "no oncekey store below this prefix" in ran.err
    assert here("migrate", url, "--json").data["applied"] == ["format 1"]
    assert here("migrate", url, "--json").data["applied"] == []
    assert "no tables" in here("migrate", url, "--sql").err


def test_keys_are_listed_shown_and_decided(here: Command, shop: str) -> None:
    listed = here("list", shop, "--json").data
    assert sorted(one["state"] for one in listed["keys"]) == ["failed", "succeeded", "unknown"]
    shown = here("show", shop, "charge", "order-1", "--scope", "acct_1", "--json", "--bodies")
    assert shown.code == ExitCode.OK
    assert "ch_1" in shown.out
    decide = ("charge", "order-3", "--scope", "acct_1", "--by", "ana", "--why", "the bank says")
    assert here("resolve", shop, *decide, "--free", "--yes").code == ExitCode.OK
    free = ("charge", "order-2", "--scope", "acct_1", "--by", "ana", "--why", "a new card")
    assert here("release", shop, *free, "--yes").code == ExitCode.OK
    with Once(shop) as once:
        again = once.run("charge", "order-3", lambda attempt: "ran", scope="acct_1")
        assert (again.value, again.replayed) == ("ran", False)


def test_stats_sweep_and_doctor_report(here: Command, shop: str) -> None:
    figures = here("stats", shop, "--json").data
    assert figures["rows"] == 3
    assert here("sweep", shop).code == ExitCode.OK
    report = here("doctor", shop, "--json").data
    found = {one["check"]: one["severity"] for one in report["findings"]}
    assert found["etcd.members"] == found["etcd.records"] == found["etcd.alarms"] == "ok"
    assert found["etcd.majority"] == found["etcd.sweeper"] == "ok"
    assert report["store"] == shop


def test_doctor_finds_a_member_that_is_away_and_a_prefix_without_a_store(
    here: Command, url: str
) -> None:
    first, _, rest = url.partition(",")
    report = here("doctor", f"{first},127.0.0.1:1,{rest}", "--json").data
    found = {one["check"]: one["severity"] for one in report["findings"]}
    assert found["etcd.members"] == found["etcd.records"] == "broken"


def test_an_app_uses_the_store_it_is_said_to_use(url: str) -> None:
    store, other = open_blocking(url), open_blocking(url + "-other")
    assert is_same_store(url, store)
    assert is_same_store(url, other) is False
    assert is_same_store("etcd://elsewhere" + url[url.rindex("/") :], store) is None
    assert is_same_store(url, object()) is False
