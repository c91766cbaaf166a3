"""The guarantee follows the server's settings and is checked against `require` (I4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import (
    Reach,
    StoreAdapter,
    StoreAdapters,
    caller_pool,
    direct_url,
    fresh_server,
    make_claim,
    make_finish,
    through_pgbouncer,
    unconfirmed,
    with_standby,
)
from tests.support.servers import Postgres

from oncekey.core.commands import Claimed, Done, Look
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Level
from oncekey.core.policy import Policy
from oncekey.stores.move import AsyncDualStore, DualStore
from oncekey.stores.postgres.durability import Server, guarantee
from oncekey.stores.postgres.standbys import Standbys, parse_names
from oncekey.stores.replica_sightings import Replica
from oncekey.stores.server_watch import SettingsWatch
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore

ALONE = Server(version=180_000, fsync=True, full_page_writes=True, standby=False)
ASYNCHRONOUS = ALONE._replace(standbys=Standbys(attached=(Replica("standby"),)))
SYNCHRONOUS = ALONE._replace(standbys=Standbys(parse_names("standby"), (Replica("standby"),)))


@pytest.mark.parametrize(
    ("server", "commit", "failover", "level", "said"),
    [
        (ALONE, "on", "auto", Level.TRANSACTIONAL, "on disk before it returns"),
        (ALONE, "local", "auto", Level.TRANSACTIONAL, "on disk before it returns"),
        (ALONE, "off", "auto", Level.BEST_EFFORT, "synchronous_commit is off"),
        (ALONE, "off", "never", Level.BEST_EFFORT, "synchronous_commit is off"),
        (ALONE._replace(fsync=False), "on", "auto", Level.BEST_EFFORT, "fsync is off"),
        (ALONE._replace(full_page_writes=False), "on", "auto", Level.BEST_EFFORT, "full_page"),
        (ASYNCHRONOUS, "on", "auto", Level.BEST_EFFORT, "asynchronous standby"),
        (ASYNCHRONOUS, "on", "never", Level.TRANSACTIONAL, "on disk before"),
        (SYNCHRONOUS, "on", "auto", Level.TRANSACTIONAL, "and on a synchronous standby"),
        (SYNCHRONOUS, "remote_apply", "auto", Level.TRANSACTIONAL, "synchronous standby"),
        (SYNCHRONOUS, "local", "auto", Level.BEST_EFFORT, "asynchronous standby"),
        (SYNCHRONOUS, "local", "never", Level.TRANSACTIONAL, "every commit is on disk before"),
    ],
)
def test_guarantee_by_server_settings(
    server: Server, commit: str, failover: str, level: Level, said: str
) -> None:
    result = guarantee(server, commit, failover)
    assert result.level is level
    assert said in result.reason


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    with ExitStack() as stack:
        primary = fresh_server()
        stack.callback(primary.close)
        standby = with_standby(primary)
        stack.callback(standby.close)
        yield primary, standby


@pytest.fixture
def primary(pair: tuple[Postgres, Postgres]) -> Postgres:
    primary, standby = pair
    if not standby.is_running:
        standby.start()
    primary.configure({"synchronous_standby_names": ""})
    primary.execute("DROP SCHEMA IF EXISTS oncekey CASCADE")
    primary.wait_for_standby()
    return primary


@pytest.fixture
def standby(pair: tuple[Postgres, Postgres], primary: Postgres) -> Postgres:
    return pair[1]


def require_synchronous(primary: Postgres) -> None:
    primary.configure({"synchronous_standby_names": "standby"})
    primary.wait_for_standby(sync=True)


# --- an asynchronous standby ----------------------------------------------------------------------


def test_an_asynchronous_standby_lowers_the_guarantee_and_require_refuses_it(
    adapters: StoreAdapters, primary: Postgres
) -> None:
    store = adapters.store(primary.url())
    once = adapters.once(store, policy=Policy(require="at_most_once"))
    ran: list[str] = []
    for _ in range(2):  # also when it is tried again
        with pytest.raises(ConfigurationError, match="requires at most once but would run at best"):
            once.run("op", "k", lambda attempt: ran.append("ran"))
    assert ran == []
    assert store.guarantee.level is Level.BEST_EFFORT
    assert "asynchronous standby is attached" in store.guarantee.reason
    assert "failover='never'" in store.guarantee.reason
    content = adapters.once(store)
    assert content.run("op", "k", lambda attempt: "ran").value == "ran"
    with pytest.raises(ConfigurationError, match="asynchronous standby"):
        content.run("op", "k2", lambda attempt: None, require="at_most_once")


def test_failover_never_keeps_the_full_guarantee(
    adapters: StoreAdapters, primary: Postgres
) -> None:
    store = adapters.store(primary.url(), failover="never")
    once = adapters.once(store, policy=Policy(require="at_most_once"))
    assert once.run("op", "k", lambda attempt: "ran").value == "ran"
    assert store.guarantee.level is Level.TRANSACTIONAL


def test_an_unprivileged_role_sees_the_standby_too(
    adapters: StoreAdapters, primary: Postgres
) -> None:
    adapters.store(primary.url()).prepare()
    primary.execute("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    primary.execute("GRANT USAGE ON SCHEMA oncekey TO plain")
    primary.execute("GRANT SELECT ON ALL TABLES IN SCHEMA oncekey TO plain")
    store = adapters.store(primary.url(user="plain"))
    store.prepare()
    assert store.guarantee.level is Level.BEST_EFFORT
    primary.execute("DROP OWNED BY plain")


# --- the standby itself ---------------------------------------------------------------------------


def test_a_store_on_a_read_only_standby_is_refused(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    """Even replays are refused: a standby may lag behind, and a claim must see the latest state."""
    with pytest.raises(ConfigurationError, match=r"lacks tables.*read-only standby"):
        adapters.store(standby.url()).prepare()
    require_synchronous(primary)
    store = adapters.store(primary.url(), synchronous_commit="remote_apply")
    claim = make_claim("k")
    store.apply([make_finish(claim, store.claim(claim).fence)])
    wrong = adapters.store(standby.url())
    for command in (make_claim("new"), make_claim("k", "another")):
        with pytest.raises(StoreUnavailable, match=r"read-only.*connect to the primary") as raised:
            wrong.apply([command])
        assert not raised.value.ambiguous


# --- a wait for the standby that was cut short ----------------------------------------------------


@pytest.mark.parametrize("reach", [direct_url, caller_pool, through_pgbouncer])
def test_i4_a_commit_no_standby_has_confirmed_is_not_acknowledged(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres, reach: Reach
) -> None:
    """The server commits locally and only warns. A repeated finish finds the record ended, and must
    not be acknowledged either until the standby has it."""
    require_synchronous(primary)
    with ExitStack() as stack:
        address, options = reach(adapters, primary, stack)
        store = adapters.store(address, **options)
        claim = make_claim("k")
        fence = store.claim(claim).fence
        store._database._reply_timeout = 0.1
        assert "synchronous standby" in store.guarantee.reason
        standby.stop("immediate")
        finish = make_finish(claim, fence)
        unconfirmed(store, make_claim("other"))
        for _ in range(2):
            unconfirmed(store, finish)
        unconfirmed(store, make_claim("k", "another"))  # a replay of what may yet be lost
        unconfirmed(store, Look(claim.id))
        assert primary.execute("SELECT count(*) FROM oncekey.records WHERE state = 2") == [(1,)]
        assert primary.execute(WAITING) == [(0,)]  # no session is left behind
        standby.start()
        primary.wait_for_standby(sync=True)
        store._database._reply_timeout = 30
        assert store.apply([finish]) == [Done()]
        assert isinstance(store.apply([make_claim("other")])[0], Claimed)
        assert store.store._unconfirmed == set()
        store.close()


def test_the_guarantee_is_read_again_after_a_failure(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    require_synchronous(primary)
    store = adapters.store(primary.url())
    store.prepare()
    store._database._reply_timeout = 0.1
    standby.stop()
    unconfirmed(store, make_claim("k"))
    primary.configure({"synchronous_standby_names": ""})
    store._database._reply_timeout = 30
    store.claim(make_claim("k"))
    assert store.guarantee.level is Level.BEST_EFFORT, "the standby may still be promoted"
    assert "an asynchronous standby was attached, 'standby'" in store.guarantee.reason


# --- a guarantee that changes while it is relied on -----------------------------------------------


def lowered_and_raised(
    adapters: StoreAdapters,
    primary: Postgres,
    standby: Postgres,
    run: Callable[[Any, str, Any], object],
    place: Callable[[StoreAdapter], StoreAdapter] = lambda store: store,
    **options: Any,
) -> None:
    """An asynchronous standby attaches, which would lack the last keys if promoted. From then on
    operations that require more are refused, until the standby is synchronous."""
    standby.stop()
    store = place(adapters.store(primary.url(), guarantee_interval="1ms", **options))
    once = adapters.once(store, policy=Policy(require="at_most_once"))
    events: list[Event] = []
    once.subscribe(events.append)
    ran: list[str] = []

    def attempt(key: str) -> None:
        run(once, key, lambda attempt: ran.append(key))

    attempt("before")
    standby.start()
    primary.wait_for_standby()
    for key in ("a", "b"):
        with pytest.raises(StoreUnavailable, match=r"become best effort.*Nothing ran") as raised:
            attempt(key)
        assert not raised.value.ambiguous
    assert ran == ["before"]
    assert once.guarantee.level is Level.BEST_EFFORT
    assert once.run("op", "any", lambda attempt: "ran", require="best_effort").value == "ran"
    require_synchronous(primary)
    attempt("a")
    assert ran == ["before", "a"]
    fell, rose = (event for event in events if event.kind is EventKind.GUARANTEE)
    assert "an asynchronous standby is attached, 'standby' (127.0.0.1" in fell.reason
    assert rose.reason == once.guarantee.reason != fell.reason
    primary.configure({"synchronous_standby_names": ""})  # and cleared again
    with pytest.raises(StoreUnavailable, match="become best effort"):
        attempt("b")


def test_a_lowered_guarantee_is_reported_and_checked_against_require(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    lowered_and_raised(
        adapters, primary, standby, lambda once, key, body: once.run("op", key, body)
    )


def test_a_lowered_guarantee_of_the_new_store_of_a_move_is_noticed(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres, tmp_path: Path
) -> None:
    """A claim comes to the new store as ClaimAlso, and is watched as any other."""

    def place(store: StoreAdapter) -> StoreAdapter:
        file = tmp_path / "old.db"
        if adapters.is_async:
            moving: Any = AsyncDualStore(AsyncSQLiteStore(file), store.store)
        else:
            moving = DualStore(SQLiteStore(file), store.store)
        return StoreAdapter(moving, adapters.loop)

    lowered_and_raised(
        adapters, primary, standby, lambda once, key, body: once.run("op", key, body), place
    )


def test_a_lowered_guarantee_is_noticed_by_portable_claims(
    primary: Postgres, standby: Postgres
) -> None:
    adapters = StoreAdapters("psycopg")
    try:
        lowered_and_raised(
            adapters,
            primary,
            standby,
            lambda once, key, body: once.run("op", key, body),
            claim="portable",
        )
    finally:
        adapters.close()


def test_a_lowered_guarantee_is_checked_against_require_in_a_transaction(
    primary: Postgres, standby: Postgres
) -> None:
    def run(once: Any, key: str, body: Any) -> None:
        with psycopg.connect(primary.url()) as connection:
            once.in_transaction(connection).run("op", key, body)

    adapters = StoreAdapters("psycopg")
    try:
        lowered_and_raised(adapters, primary, standby, run)
    finally:
        adapters.close()


def test_settings_watch_is_due_after_the_interval_and_not_before() -> None:
    now = [100.0]
    watch = SettingsWatch(5.0, lambda: now[0])
    assert watch.is_due()
    watch.renew()
    now[0] += 4.9
    assert not watch.is_due()
    now[0] += 0.1
    assert watch.is_due()
    assert watch.is_due(), "nobody has read them yet"
    watch.renew()
    assert not watch.is_due()
    watch.expire()
    assert watch.is_due()
