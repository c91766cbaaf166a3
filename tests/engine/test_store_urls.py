"""Stores are opened by URL: built in, added by entry points, or refused with the known schemes."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.engine import store_urls
from oncekey.engine.store_urls import BUILT_IN, GROUP, async_store, blocking_store
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore


def test_memory_urls_open_memory_stores() -> None:
    assert type(blocking_store("memory://")) is MemoryStore
    assert type(async_store("memory://")) is AsyncMemoryStore


def test_a_store_object_is_used_as_it_is() -> None:
    store, later = MemoryStore(), AsyncMemoryStore()
    assert blocking_store(store) is store
    assert async_store(later) is later


@pytest.mark.parametrize("opener", [blocking_store, async_store])
@pytest.mark.parametrize("url", ["payments.db", "memory:", "memory:/", "sqlite"])
def test_a_text_that_is_no_url_is_refused_with_an_example(opener: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a store URL; try sqlite:///payments"):
        opener(url)


@pytest.mark.parametrize("engine", [Once, AsyncOnce])
@pytest.mark.parametrize(
    ("store", "message"),
    [
        (None, "None; if its URL comes from the environment, that variable is not set"),
        ("", "empty; if it comes from the environment"),
        (object(), "a object is no store"),
    ],
)
def test_a_url_that_is_not_set_is_a_configuration_error(
    engine: Any, store: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        engine(store)


def test_an_async_store_is_refused_by_once() -> None:
    store: Any = AsyncMemoryStore()
    with pytest.raises(ConfigurationError, match="give it to AsyncOnce"):
        Once(store)


@pytest.mark.parametrize("opener", [blocking_store, async_store])
@pytest.mark.parametrize("scheme", ["mongodb", "Memory", "", "oncekey.stores"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(opener: Any, scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no store for {scheme}://; known are etcd, "):
        opener(f"{scheme}://host")


@pytest.mark.parametrize("opener", [blocking_store, async_store])
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql+psycopg://user:s3cret@host/db", r"Drop \+psycopg and write postgresql://"),
        ("postgres+asyncpg://host/db", r"Drop \+asyncpg and write postgres://"),
        ("sqlite+pysqlite:///shop.db", r"Drop \+pysqlite and write sqlite://"),
    ],
)
def test_a_sqlalchemy_url_is_refused_with_the_part_to_drop(
    opener: Any, url: str, hint: str
) -> None:
    with pytest.raises(ConfigurationError, match=hint) as caught:
        opener(url)
    assert "s3cret" not in str(caught.value)


def test_a_memory_url_with_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write memory://"):
        blocking_store("memory://name")


@pytest.mark.parametrize("scheme", [name for name in BUILT_IN if name != store_urls.MOVING])
def test_every_built_in_scheme_has_a_module_with_both_openers(scheme: str) -> None:
    module = store_urls.store_module(f"{scheme}://")
    assert callable(module.open_blocking)
    assert callable(module.open_async)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install a package that adds the scheme "papyrus"; the value is the list of opened URLs."""
    opened: list[str] = []
    module = types.ModuleType("papyrus_store")

    def open_blocking(url: str) -> MemoryStore:
        opened.append(url)
        return MemoryStore()

    def open_async(url: str) -> AsyncMemoryStore:
        opened.append(url)
        return AsyncMemoryStore()

    vars(module).update(open_blocking=open_blocking, open_async=open_async)
    monkeypatch.setitem(sys.modules, "papyrus_store", module)

    def entry_points(*, group: str) -> EntryPoints:
        assert group == GROUP
        return EntryPoints([EntryPoint("papyrus", "papyrus_store", group)])

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return opened


def test_another_package_may_add_a_scheme(added: list[str]) -> None:
    assert type(blocking_store("papyrus://scroll/1")) is MemoryStore
    assert type(async_store("papyrus://scroll/2")) is AsyncMemoryStore
    assert added == ["papyrus://scroll/1", "papyrus://scroll/2"]


def test_an_added_scheme_is_named_among_the_known(added: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"memory, .*papyrus, "):
        blocking_store("clay://tablet")
    assert added == []
