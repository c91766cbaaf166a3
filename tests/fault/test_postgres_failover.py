"""A primary is killed under load and its standby is promoted (I3, I4).

With a synchronous standby nothing that was acknowledged is lost, and the callers, which know both
addresses, continue by themselves. With an asynchronous standby that lags behind, acknowledged
claims and finishes are lost: that is why the guarantee of such a server is best effort.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.fault.postgres_load import LEASE, Acknowledged, Load, lost
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


def url_of_both(primary: Postgres, standby: Postgres) -> str:
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


def report(line: str) -> None:
    """Print a line, which `pytest -s` shows."""
    sys.stdout.write(f"\n{line}\n")


def test_i4_a_promoted_synchronous_standby_has_everything_acknowledged(stack: ExitStack) -> None:
    primary = fresh_server()
    stack.callback(primary.close)
    standby = with_standby(primary, synchronous=True)
    stack.callback(standby.close)
    with Load(url_of_both(primary, standby)) as load:
        load.wait_for(KEYS)
        primary.kill()
        before = dict(load.acknowledged)
        standby.configure(
            {"synchronous_standby_names": ""}
        )  # the setting was copied from the primary
        standby.promote()
        assert lost(standby, before) == []
        load.wait_for(KEYS)  # the callers have found the new primary by themselves
    assert load.wrong_replies == []
    assert lost(standby, load.acknowledged) == []
    finished = {id: one for id, one in before.items() if one.body is not None}
    report(f"{len(before)} claims and {len(finished)} finishes acknowledged before, 0 lost")
    assert len(finished) > KEYS // 4
    assert replays(standby, finished) == [one.body for one in finished.values()]  # I3


def replays(server: Postgres, finished: dict[bytes, Acknowledged]) -> list[bytes]:
    """Claim the finished keys again, and return the bodies of the replays."""
    store = PostgresStore(server.url())
    claims = [Claim(id, b"another" + b"." * 9, b"\x01f", LEASE, LEASE, 0, False) for id in finished]
    replies = store.apply(claims)
    store.close()
    return [reply.body for reply in replies if isinstance(reply, Replay)]


def test_a_promoted_asynchronous_standby_lacks_acknowledged_claims(stack: ExitStack) -> None:
    primary = fresh_server()
    stack.callback(primary.close)
    proxy = stack.enter_context(Proxy(primary.port))
    standby = with_standby(primary, through=proxy.port)
    stack.callback(standby.close)
    with Load(primary.url(), threads=2, tasks=2) as load:
        assert (
            load.sync_store.guarantee.level is Level.BEST_EFFORT
        )  # the store has seen the standby
        load.wait_for(KEYS)
        proxy.hold("replies")  # holds back the WAL for the standby
        load.wait_for(KEYS)
        primary.kill()
        acknowledged = dict(load.acknowledged)
        proxy.cut()
        proxy.refuse()
        standby.promote()
        missing = lost(standby, acknowledged)
    report(f"{len(missing)} of {len(acknowledged)} acknowledged are not on the standby")
    assert any(line.startswith("claim") for line in missing)
