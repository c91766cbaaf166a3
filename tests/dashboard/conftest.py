"""Dashboards that the tests share: one per store, with keys of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from tests.dashboard.reader import Reader
from tests.dashboard.sample_keys import SampleKeys, fill
from tests.dashboard.served_dashboard import TOKEN, served
from tests.support.postgres_stores import DATABASE, emptied, server
from tests.support.redis_stores import valkey

from oncekey.core.store import Store
from oncekey.dashboard import Dashboard
from oncekey.engine.store_urls import blocking_store


@dataclass(frozen=True)
class Shop:
    """A store with sample keys, and its dashboard. `ids` are those of the keys, by name."""

    url: str
    address: str
    app: Dashboard
    store: Store
    keys: SampleKeys
    ids: dict[str, str]


def store_url(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'shop.db'}"
    name = f"dashboard_{uuid4().hex[:12]}"  # other processes of the run use the same servers
    if kind == "redis":
        return f"{valkey().url()}?prefix={name}"
    emptied({"schema": name})
    return f"{server().url(DATABASE)}?schema={name}"


@pytest.fixture(scope="session", params=["sqlite", "postgres", "redis"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    url = store_url(request.param, tmp_path_factory.mktemp("dashboard"))
    store = blocking_store(url)
    ids = fill(store)
    app = Dashboard(url, token=TOKEN, bodies=True)
    with served(app) as address:
        yield Shop(url, address, app, store, SampleKeys(store), ids)
    store.close()


@pytest.fixture
def reader(shop: Shop) -> Iterator[Reader]:
    with Reader(shop.address) as signed_in:
        assert signed_in.sign_in().status_code == 303
        yield signed_in
