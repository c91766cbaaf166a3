"""A standby that was seen once counts until an operator says that it is gone (I4).

It is cut off before it is promoted, so what the primary says of its standbys at that moment is the
opposite of what is about to happen.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import StoreAdapters, fresh_server, make_claim, with_standby
from tests.support.servers import Postgres, processes

from oncekey import Once
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.guarantees import Level
from oncekey.core.policy import Policy
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.postgres.standbys import Standbys, parse_names, walsender
from oncekey.stores.replica_sightings import (
    OTHERS,
    SIGHTING_INTERVAL_US,
    SIGHTINGS_MAX,
    Remembered,
    Replica,
    ReplicaMemory,
    Sighting,
)

NOW = 1_800_000_000_000_000
SLOT = "for_standby"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    with ExitStack() as stack:
        primary = fresh_server()
        stack.callback(primary.close)
        standby = with_standby(primary)
        stack.callback(standby.close)
        yield primary, standby


@pytest.fixture
def primary(pair: tuple[Postgres, Postgres]) -> Iterator[Postgres]:
    """Its standby is down, and no store is there yet."""
    primary, standby = pair
    cut_off(primary, standby)
    primary.configure({"synchronous_standby_names": ""})
    primary.execute("DROP SCHEMA IF EXISTS oncekey CASCADE")
    yield primary
    cut_off(primary, standby)
    standby.settings.pop("primary_slot_name", None)
    primary.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.fixture
def standby(pair: tuple[Postgres, Postgres], primary: Postgres) -> Postgres:
    return pair[1]


def attach(primary: Postgres, standby: Postgres) -> None:
    standby.start()
    primary.wait_for_standby()


def cut_off(primary: Postgres, standby: Postgres) -> None:
    standby.kill()
    processes.wait_until(
        lambda: primary.execute("SELECT count(*) FROM pg_stat_replication") == [(0,)],
        "the standby is gone",
    )


def opened(adapters: StoreAdapters, primary: Postgres, **options: Any) -> Any:
    """A store of a process that starts now."""
    store = adapters.store(primary.url(), **options)
    store.prepare()
    return store


@pytest.mark.parametrize("slot", [False, True], ids=["without a slot", "with a slot"])
def test_i4_a_standby_that_was_cut_off_still_lowers_the_guarantee(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres, slot: bool
) -> None:
    if slot:
        primary.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
        standby.settings["primary_slot_name"] = SLOT
    attach(primary, standby)
    store = adapters.store(primary.url(), guarantee_interval="1ms")
    store.claim(make_claim("a"))
    assert "an asynchronous standby is attached, 'standby' (127.0.0.1" in store.guarantee.reason
    cut_off(primary, standby)

    store.claim(make_claim("b"))
    for one in (store, opened(adapters, primary)):
        assert one.guarantee.level is Level.BEST_EFFORT
        assert "was attached, 'standby' (127.0.0.1" in one.guarantee.reason
        assert "last seen 20" in one.guarantee.reason
        assert "oncekey guarantee --forget standby" in one.guarantee.reason
    # What releases before this read: to them it is as good as attached.
    ((settings,),) = primary.execute("SELECT oncekey.settings_1()")
    assert settings.split()[4] == "1"
    strict_store = adapters.store(primary.url(), guarantee_interval="1ms")
    strict = adapters.once(strict_store, policy=Policy(require="at_most_once"))
    with pytest.raises(ConfigurationError, match="requires at most once"):
        strict.run("op", "k", lambda attempt: pytest.fail("it ran"))

    store.forget_replica("standby", by="ana", why="its host was given back")
    if slot:
        assert store.guarantee.level is Level.BEST_EFFORT
        assert f"'slot {SLOT}'" in store.guarantee.reason
        primary.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
        store.claim(make_claim("c"))
        store.forget_replica(f"slot {SLOT}", by="ana", why="dropped")
    assert store.guarantee.level is Level.TRANSACTIONAL
    assert opened(adapters, primary).guarantee.level is Level.TRANSACTIONAL
    assert strict.run("op", "k", lambda attempt: "ran").value == "ran"
    note = next(one.note for one in store.replicas().forgotten if one.name == "standby")
    assert "ana forgot it: its host was given back (seen 20" in note

    if slot:
        primary.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
    attach(primary, standby)
    with pytest.raises(StoreUnavailable, match="become best effort"):
        strict.run("op", "k2", lambda attempt: pytest.fail("it ran"))
    assert opened(adapters, primary).guarantee.level is Level.BEST_EFFORT


def test_i4_a_slot_counts_though_nobody_was_ever_seen_to_use_it(
    adapters: StoreAdapters, primary: Postgres
) -> None:
    """A standby that was cut off before the first process looked."""
    primary.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
    store = opened(adapters, primary)
    assert store.guarantee.level is Level.BEST_EFFORT
    assert f"'slot {SLOT}'" in store.guarantee.reason
    assert opened(adapters, primary, failover="never").guarantee.level is Level.TRANSACTIONAL


def test_i4_a_synchronous_standby_counts_once_commits_stop_waiting_for_it(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    """The usual repair when it is cut off and commits hang."""
    attach(primary, standby)
    primary.configure({"synchronous_standby_names": "standby"})
    primary.wait_for_standby(sync=True)
    store = adapters.store(primary.url(), guarantee_interval="1ms")
    store.claim(make_claim("a"))
    assert "and on a synchronous standby" in store.guarantee.reason
    cut_off(primary, standby)
    primary.configure({"synchronous_standby_names": ""})
    store.claim(make_claim("b"))
    for one in (store, opened(adapters, primary)):
        assert one.guarantee.level is Level.BEST_EFFORT
        assert "was attached, 'standby'" in one.guarantee.reason


def test_a_log_that_is_copied_into_files_is_no_standby(primary: Postgres, tmp_path: Path) -> None:
    """Nobody can promote a file."""
    archiver = primary.bin / "pg_receivewal"
    to = ["--directory", str(tmp_path), "--dbname", primary.url(), "--slot", "archive"]
    subprocess.run([archiver, *to, "--create-slot"], check=True, capture_output=True)
    with subprocess.Popen([archiver, *to], stderr=subprocess.DEVNULL) as process:
        try:
            primary.wait_for_standby("pg_receivewal")
            with closing(PostgresStore(primary.url())) as store:
                store.prepare()
                assert store.guarantee.level is Level.TRANSACTIONAL
                assert store.replicas().sightings == ()
        finally:
            process.kill()


@pytest.mark.parametrize("claim", ["row_lock", "portable"])
def test_every_way_to_claim_sees_a_standby(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres, claim: str
) -> None:
    store = adapters.store(primary.url(), claim=claim, guarantee_interval="1ms")
    store.claim(make_claim("a"))
    levels = [store.guarantee.level]
    attach(primary, standby)
    store.claim(make_claim("b"))
    levels.append(store.guarantee.level)
    assert levels == [Level.TRANSACTIONAL, Level.BEST_EFFORT]
    cut_off(primary, standby)
    assert opened(adapters, primary).guarantee.level is Level.BEST_EFFORT


def test_a_claim_in_a_callers_transaction_writes_the_standby_down(
    primary: Postgres, standby: Postgres
) -> None:
    """Outside of that transaction, which may be rolled back."""
    with closing(PostgresStore(primary.url(), guarantee_interval="1ms")) as store:
        once = Once(store)
        once.run("op", "before", lambda attempt: None)
        attach(primary, standby)
        with psycopg.connect(primary.url()) as connection:
            once.in_transaction(connection).run("op", "k", lambda attempt: None)
            connection.rollback()
    cut_off(primary, standby)
    with closing(PostgresStore(primary.url())) as later:
        later.prepare()
        assert later.guarantee.level is Level.BEST_EFFORT


def test_a_role_that_may_not_write_it_down_warns_and_stays_low(
    adapters: StoreAdapters,
    primary: Postgres,
    standby: Postgres,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = opened(adapters, primary)
    primary.execute("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN")
    primary.execute("GRANT USAGE ON SCHEMA oncekey TO plain")
    primary.execute("GRANT SELECT, INSERT, UPDATE ON oncekey.records, oncekey.history TO plain")
    primary.execute("GRANT SELECT ON oncekey.meta, oncekey.migrations TO plain")
    attach(primary, standby)
    store = adapters.store(primary.url(user="plain"), guarantee_interval="1ms")
    with caplog.at_level(logging.WARNING, logger="oncekey"):
        for name in ("a", "b"):
            store.claim(make_claim(name))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, said
    assert "could not be written down in the store: 'standby'" in said[0]
    cut_off(primary, standby)
    store.claim(make_claim("c"))
    assert store.guarantee.level is Level.BEST_EFFORT
    owner.claim(make_claim("d"))
    assert owner.guarantee.level is Level.TRANSACTIONAL, "nobody could tell it"
    primary.execute("GRANT INSERT, UPDATE ON oncekey.meta TO plain")
    store.claim(make_claim("e"))
    assert opened(adapters, primary).guarantee.level is Level.BEST_EFFORT
    primary.execute("DROP OWNED BY plain")


def test_nothing_but_an_operators_word_removes_a_sighting(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    attach(primary, standby)
    store = opened(adapters, primary)
    store.claim(make_claim("a"))
    assert store.sweep() == 0
    (sighting,) = store.replicas().sightings
    assert sighting.replica == Replica("standby", "127.0.0.1")
    for bad in ({"by": "", "why": "x"}, {"by": "ana", "why": "two\nlines"}):
        with pytest.raises(ConfigurationError, match="must be text on one line"):
            store.forget_replica("standby", **bad)
    with pytest.raises(ConfigurationError, match=r"no replica 'other' was seen.*'standby'"):
        store.forget_replica("other", by="ana", why="gone")
    assert len(store.replicas().sightings) == 1


# --- which standbys have every commit -------------------------------------------------------------


def lacking(setting: str, *names: str, attached: tuple[str, ...] = ()) -> list[str]:
    standbys = Standbys(
        parse_names(setting), tuple(walsender(name, None, None) for name in attached)
    )
    sightings = [Sighting(Replica(name), NOW, NOW) for name in names]
    return [one.name for one in standbys.lacking(sightings)]


@pytest.mark.parametrize(
    ("setting", "lack"),
    [
        ("", ["a", "b"]),
        ("a", ["b"]),
        ("A", ["b"]),
        ('"a"', ["b"]),
        ("a, b", ["a", "b"]),  # commits wait for the first of them that is there
        ("FIRST 1 (a, b)", ["a", "b"]),
        ("ANY 1 (a, b)", ["a", "b"]),
        ("2 (a, b)", []),
        ("FIRST 2 (a, b)", []),
        ("any 2 (b,a)", []),
        ("ANY 3 (a, b, c)", []),
        ("ANY 2 (a, b, c)", ["a", "b"]),
        ("c", ["a", "b"]),
        ("*", ["a", "b"]),
        ("2 (*)", []),
    ],
)
def test_only_standbys_that_every_commit_waits_for_have_every_commit(
    setting: str, lack: list[str]
) -> None:
    assert lacking(setting, "a", "b") == lack


def test_standbys_that_share_a_name_take_turns_in_confirming() -> None:
    assert lacking("a", "a", attached=("a",)) == []
    assert lacking("a", "a", attached=("a", "a")) == ["a"]
    assert lacking("*", "a", attached=("a",)) == []
    assert lacking("*", "a", attached=("a", "pg_receivewal")) == ["a"], "it may confirm alone"


def test_whoever_copies_the_log_into_files_is_no_standby() -> None:
    archive = walsender("pg_receivewal", None, "archive")
    assert Standbys(attached=(archive, walsender("pg_basebackup", None, None))).seen() == []
    idle = Standbys(idle_slots=("archive",))
    (slot,) = idle.seen()
    sighting = Sighting(slot, NOW, NOW)
    assert idle.lacking([sighting]) == [sighting], "nobody knows whose it is"
    assert Standbys(attached=(archive,)).lacking([sighting]) == []


def test_a_slot_belongs_to_the_standby_that_was_seen_with_it() -> None:
    user = Sighting(Replica("a", "", "one"), NOW, NOW)
    idle = Standbys(parse_names("a"), idle_slots=("one",))
    assert idle.seen([user]) == []
    unexplained = Sighting(Replica("slot one", "", "one"), NOW, NOW)
    assert idle.lacking([user, unexplained]) == []
    assert idle.lacking([unexplained]) == [unexplained]


# --- what is written down when --------------------------------------------------------------------


def test_a_sighting_is_written_when_it_is_new_or_old_and_not_in_between() -> None:
    memory, standby = ReplicaMemory(), Replica("standby")
    assert [one.name for one in memory.observe([standby], Remembered(NOW))] == ["standby"]
    assert memory.take_due() == (standby,)
    assert memory.due == ()
    memory.note_written([standby])
    known = (Sighting(standby, NOW, NOW),)
    for now, is_due in (
        (NOW + 1, False),
        (NOW + SIGHTING_INTERVAL_US - 1, False),
        (NOW + SIGHTING_INTERVAL_US, True),
        (NOW - SIGHTING_INTERVAL_US, True),  # the clock was set back
    ):
        memory.observe([standby], Remembered(now, known))
        assert bool(memory.take_due()) is is_due, now
        memory.note_written([standby])
    assert memory.observe([], Remembered(NOW, known)) == known
    assert memory.observe([], Remembered(NOW)) == (), "it was forgotten"


def test_what_could_not_be_written_counts_until_it_is() -> None:
    memory, standby = ReplicaMemory(), Replica("standby")
    memory.observe([standby], Remembered(NOW))
    memory.note_failure(memory.take_due(), StoreUnavailable("no right"))
    (kept,) = memory.observe([], Remembered(NOW + 1))
    assert (kept.name, memory.take_due()) == ("standby", (standby,))
    memory.note_written([standby])
    assert memory.observe([], Remembered(NOW + 2)) == ()


def test_names_are_bounded_and_the_rest_share_one() -> None:
    """Servers that come and go under new names fill nobody's store."""
    known = tuple(Sighting(Replica(f"r{n}"), NOW, NOW) for n in range(SIGHTINGS_MAX))
    memory = ReplicaMemory()
    memory.observe([Replica("new"), Replica("newer"), Replica("r0")], Remembered(NOW, known))
    assert memory.take_due() == (Replica(OTHERS),)


def test_a_name_that_a_server_chose_is_fit_to_be_stored() -> None:
    assert walsender("two\nlines", None, None).name == "two?lines"
    assert walsender(None, None, None).name == "?"
    assert len(walsender("x" * 5_000, None, None).name) == 200
