"""URLs and options of the SQLite store, and its guarantee."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncekey
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Level
from oncekey.stores.sqlite import (
    AsyncSQLiteStore,
    SQLiteStore,
    durability,
    open_async,
    open_blocking,
)


def test_a_relative_address_is_relative_to_the_directory_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_blocking("sqlite:///keys.db")
    assert store.path == str(tmp_path / "keys.db")
    monkeypatch.chdir("/")
    assert store.path == str(tmp_path / "keys.db")
    store.close()


def test_an_absolute_address_has_four_slashes(tmp_path: Path) -> None:
    store = open_blocking(
        f"sqlite:///{tmp_path}/with%20space.db?busy_timeout=250ms&synchronous=OFF"
    )
    assert (tmp_path / "with space.db").exists()
    assert store.guarantee.level is Level.BEST_EFFORT
    store.close()


def test_the_async_store_is_opened_by_its_first_call(tmp_path: Path) -> None:
    store = open_async(f"sqlite:///{tmp_path}/keys.db")
    assert isinstance(store, AsyncSQLiteStore)
    assert not (tmp_path / "keys.db").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://keys.db", "names no file"),
        ("sqlite:///x.db?color=red", "known: busy_timeout, synchronous"),
        ("sqlite:///x.db?busy_timeout=5", "not a duration"),
        ("sqlite:///x.db?busy_timeout=9999d", "too long"),
        ("sqlite:///x.db?busy_timeout=1s&busy_timeout=2s", "given twice"),
        ("sqlite:///x.db?synchronous=mostly", "choose full, extra, normal, off"),
        ("sqlite:///x.db?synchronous", "synchronous"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///file:x.db", "memory://"),
    ],
)
def test_an_unusable_address_is_refused(url: str, says: str) -> None:
    for opens in (open_blocking, open_async):
        with pytest.raises(ConfigurationError, match=says):
            opens(url)


def test_once_takes_the_address(tmp_path: Path) -> None:
    with oncekey.Once(f"sqlite:///{tmp_path}/keys.db") as once:
        first = once.run("charge", "k1", lambda attempt: {"n": 1})
    with oncekey.Once(f"sqlite:///{tmp_path}/keys.db") as once:
        again = once.run("charge", "k1", lambda attempt: {"n": 2})
    assert (first.value, first.replayed) == ({"n": 1}, False)
    assert (again.value, again.replayed) == ({"n": 1}, True)


def test_another_secret_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    oncekey.Once(url, secret="s" * 16).close()
    oncekey.Once(url, secret="s" * 16).close()
    with pytest.raises(ConfigurationError, match="another secret"):
        oncekey.Once(url, secret="t" * 16)


@pytest.mark.parametrize(
    ("synchronous", "level"),
    [
        ("full", Level.TRANSACTIONAL),
        ("extra", Level.TRANSACTIONAL),
        ("normal", Level.BEST_EFFORT),
        ("off", Level.BEST_EFFORT),
    ],
)
def test_the_guarantee_follows_synchronous(tmp_path: Path, synchronous: str, level: Level) -> None:
    store = SQLiteStore(tmp_path / "keys.db", synchronous=synchronous)
    assert store.guarantee.level is level
    assert f"synchronous={synchronous}" in store.guarantee.reason
    store.close()


@pytest.mark.parametrize(
    ("version", "bad"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_sqlite_versions_with_the_wal_reset_bug_are_known(
    version: tuple[int, ...], bad: bool
) -> None:
    assert durability.has_wal_reset_bug(version) is bad
    assert ("WAL-reset" in durability.guarantee("full", version).reason) is bad
