"""The options of a PostgreSQL store: checked by the constructor, read from URLs, and in effect."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from tests.support.postgres_adapters import StoreAdapter, StoreAdapters
from tests.support.postgres_stores import server

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import AsyncPostgresStore, Options, PostgresStore, open_blocking
from oncekey.stores.postgres.options import split_url

URL = "postgresql://user:p%40ss@host:5433/database"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": ""}, "must have 1 to 63 bytes"),
        ({"schema": "ü" * 32}, "must have 1 to 63 bytes"),
        ({"schema": 3}, "must be text"),
        ({"schema": "o'clock"}, "must do without"),
        ({"schema": "50%"}, "must do without"),
        ({"schema": "$do$"}, "must do without"),
        ({"schema": "{seed}"}, "must do without"),
        ({"schema": "a\nb"}, "control characters"),
        ({"schema": "pg_mine"}, "PostgreSQL's own"),
        ({"claim": "hope"}, "choose insert, row_lock, advisory_lock, portable"),
        ({"retention": "forever"}, "choose plain, ring"),
        ({"retention": "ring", "claim": "portable"}, "needs advisory locks"),
        ({"ring_slots": 3}, "from 4 to 64"),
        ({"ring_slots": True}, "from 4 to 64"),
        ({"pool_size": 0}, "from 1 to 64"),
        ({"pool_size": "4"}, "from 1 to 64"),
        ({"pooler": "yes"}, "must be True or False"),
        ({"migrate": 1}, "must be True or False"),
        ({"statement_timeout": "0s"}, "1ms or longer"),
        ({"lock_timeout": "25d"}, "under 24 days"),
        ({"pool_timeout": "soon"}, "pool_timeout"),
        ({"synchronous_commit": "sometimes"}, "choose on, remote_apply, local, off"),
        ({"failover": "maybe"}, "choose auto, never"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_by_the_constructor(
    options: dict[str, Any], said: str
) -> None:
    for kind in (PostgresStore, AsyncPostgresStore):
        with pytest.raises(ConfigurationError, match=said):
            kind(URL, **options)


def test_an_unknown_option_is_the_drivers_in_a_url_and_an_error_as_argument() -> None:
    with pytest.raises(TypeError):
        PostgresStore(URL, colour="red")
    with pytest.raises(ConfigurationError, match="neither oncekey nor the driver has"):
        open_blocking(f"{URL}?colour=red")


def test_a_url_is_split_into_our_part_and_the_drivers() -> None:
    query = "schema=a%22b&sslmode=require&pool_size=7&pooler=true&migrate=no&ring_period=2h"
    address, options = split_url(f"{URL}?{query}&options=-c%20work_mem%3D5MB&lock_timeout=1s")
    assert address == f"{URL}?sslmode=require&options=-c%20work_mem%3D5MB"
    assert options == Options(
        schema='a"b', pool_size=7, pooler=True, migrate=False, ring_period="2h", lock_timeout="1s"
    )
    assert split_url(URL) == (URL, Options())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pool_size=many", "must be a number"),
        ("pooler=perhaps", "must be true or false"),
        ("schema=a&schema=b", "given twice"),
        ("clock=now", ""),
    ],
)
def test_an_invalid_url_is_refused(query: str, said: str) -> None:
    if said:
        with pytest.raises(ConfigurationError, match=said):
            split_url(f"{URL}?{query}")
    else:
        assert split_url(f"{URL}?{query}") == (f"{URL}?{query}", Options())


def test_a_timeout_may_be_a_timedelta() -> None:
    assert Options(lock_timeout=timedelta(seconds=1)).session_settings["lock_timeout"] == "1000"


# --- in force -----------------------------------------------------------------------------------


def shown(adapter: StoreAdapter, *names: str) -> list[str]:
    """The values of some settings in the store's own session."""
    pool = adapter.store._database.pool
    if adapter.loop is None:
        with pool.acquire(time.monotonic() + 30) as pooled:
            pooled.start_timeout(30)
            return [pooled.connection.execute(f"SHOW {name}").fetchone()[0] for name in names]

    async def show() -> list[str]:
        async with pool.acquire(time.monotonic() + 30) as pooled:
            return [await pooled.connection.fetchval(f"SHOW {name}") for name in names]

    said: list[str] = adapter.loop.run(show())
    return said


def test_sessions_have_the_settings_of_the_options(adapters: StoreAdapters) -> None:
    """Whatever settings the role or the URL have."""
    server().execute(
        "DROP ROLE IF EXISTS odd; CREATE ROLE odd LOGIN;"
        "ALTER ROLE odd SET synchronous_commit = off;"
        "ALTER ROLE odd SET default_transaction_isolation = 'serializable';"
        "ALTER ROLE odd SET client_min_messages = 'error';"
        "ALTER ROLE odd SET statement_timeout = 0"
    )
    url = server().url(user="odd") + "?options=-c%20work_mem%3D5MB%20-c%20lock_timeout%3D0"
    store = adapters.store(url, statement_timeout="1s", lock_timeout="300ms")
    names = ["statement_timeout", "lock_timeout", "synchronous_commit", "client_min_messages"]
    names += ["default_transaction_isolation", "work_mem", "application_name"]
    assert shown(store, *names) == [
        "1s", "300ms", "on", "warning", "read committed", "5MB", "oncekey",
    ]  # fmt: skip
    store = adapters.store(f"{url}&application_name=mine", synchronous_commit="remote_apply")
    assert shown(store, "application_name", "synchronous_commit") == ["mine", "remote_apply"]
