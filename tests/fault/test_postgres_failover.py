"""The primary dies under load and its standby takes over (I3, I4).

With a synchronous standby nothing that was acknowledged is lost, and the callers, who know both
addresses, go on by themselves. With an asynchronous one that lags behind, acknowledged claims and
finishes are gone: that is why such a server is labelled best effort.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.fault.postgres_load import LEASE, Load, Told, lost
from tests.support.postgres_adapters import fresh_server, with_standby
from tests.support.servers import Postgres, Proxy

from oncekey.core.commands import Claim, Replay
from oncekey.core.guarantees import Level
from oncekey.stores.postgres import PostgresStore

KEYS = 300


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def both(primary: Postgres, standby: Postgres) -> str:
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


def tell(what: str) -> None:
    """For those who run it with -s."""
    sys.stdout.write(f"\n{what}\n")


def test_i4_a_synchronous_standby_has_all_that_was_acknowledged(stack: ExitStack) -> None:
    primary = fresh_server()
    stack.callback(primary.close)
    standby = with_standby(primary, synchronous=True)
    stack.callback(standby.close)
    with Load(both(primary, standby)) as load:
        load.wait_for(KEYS)
        primary.kill()
        before = dict(load.told)
        standby.configure({"synchronous_standby_names": ""})  # copied from the primary
        standby.promote()
        assert lost(standby, before) == []
        load.wait_for(KEYS)  # the callers have found the new one by themselves
    assert load.wrong == []
    assert lost(standby, load.told) == []
    finished = {id: one for id, one in before.items() if one.body is not None}
    tell(f"{len(before)} claims and {len(finished)} finishes acknowledged before, 0 lost")
    assert len(finished) > KEYS // 4
    assert replays(standby, finished) == [one.body for one in finished.values()]  # I3


def replays(server: Postgres, finished: dict[bytes, Told]) -> list[bytes]:
    store = PostgresStore(server.url())
    claims = [Claim(id, b"another" + b"." * 9, b"\x01f", LEASE, LEASE, 0, False) for id in finished]
    replies = store.apply(claims)
    store.close()
    return [reply.body for reply in replies if isinstance(reply, Replay)]


def test_an_asynchronous_standby_that_lags_loses_what_was_acknowledged(stack: ExitStack) -> None:
    primary = fresh_server()
    stack.callback(primary.close)
    proxy = stack.enter_context(Proxy(primary.port))
    standby = with_standby(primary, through=proxy.port)
    stack.callback(standby.close)
    with Load(primary.url(), threads=2, tasks=2) as load:
        assert load.blocking.guarantee.level is Level.BEST_EFFORT  # it was told
        load.wait_for(KEYS)
        proxy.hold("replies")  # the log on its way to the standby
        load.wait_for(KEYS)
        primary.kill()
        told = dict(load.told)
        proxy.cut()
        proxy.refuse()
        standby.promote()
        gone = lost(standby, told)
    tell(f"{len(gone)} of {len(told)} acknowledged are not on the standby")
    assert any(line.startswith("claim") for line in gone)
