"""`in_transaction` accepts only connections to the store's own database.

With a connection to another database, or to a copy of this one, keys would be looked up in the
wrong place: nothing would fail, and everything would run twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import MUST_NOT_RUN, Caller, orders, resolved
from tests.support.caller_connections.database import DATABASE, database
from tests.support.postgres_stores import server

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore

OTHER = "another_shop"


@asynccontextmanager
async def engine_on(caller: Caller, url: str, **options: Any) -> AsyncIterator[Any]:
    """An engine of the caller's kind whose store is in another database."""
    store = AsyncPostgresStore if caller.is_async else PostgresStore
    once: Any = AsyncOnce if caller.is_async else Once
    made = once(store(url, **options), cache=0)
    try:
        yield made
    finally:
        await resolved(made.close())


@pytest.fixture(scope="module")
def elsewhere() -> Any:
    postgres = server()
    postgres.drop_database(OTHER)
    yield postgres.create_database(OTHER)
    postgres.drop_database(OTHER)


def test_a_connection_to_another_database_is_refused(
    run_scenario: RunScenario, elsewhere: str
) -> None:
    """Both have the tables."""

    async def scenario(caller: Caller) -> None:
        async with engine_on(caller, elsewhere) as once:
            await caller.begin()
            tx = once.in_transaction(caller.subject)
            for _ in range(2):  # also when it is tried again
                with pytest.raises(ConfigurationError) as raised:
                    await caller.run_on(tx, "k", MUST_NOT_RUN)
                assert f"leads to database '{DATABASE}' on 127.0.0.1" in str(raised.value)
                assert f"is in database '{OTHER}' on 127.0.0.1" in str(raised.value)
            with pytest.raises(ConfigurationError, match="leads to database"):
                await resolved(tx.get("order", "k"))
            await caller.execute(
                "INSERT INTO orders VALUES ('after')"
            )  # the transaction is still usable
            await caller.commit()
        assert (caller.ran, orders()) == (0, ["after"])

    run_scenario(scenario)


def test_a_connection_to_a_database_without_the_schema_is_refused(
    run_scenario_on_drivers: RunScenario, elsewhere: str
) -> None:
    async def scenario(caller: Caller) -> None:
        async with engine_on(caller, elsewhere, schema="only_there") as once:
            await caller.begin()
            with pytest.raises(ConfigurationError) as raised:
                await caller.run_on(once.in_transaction(caller.subject), "k", MUST_NOT_RUN)
            await caller.rollback()
        said = str(raised.value)
        assert "a database without oncekey's schema 'only_there'" in said
        assert f"the store is in database '{OTHER}'" in said
        assert "oncekey migrate" in said

    run_scenario_on_drivers(scenario)


def test_a_copy_of_the_database_is_another_store(elsewhere: str) -> None:
    postgres = server()
    store = PostgresStore(elsewhere)
    store.prepare()
    store.close()  # a template must have no sessions
    postgres.drop_database("copied")
    postgres.execute(f"CREATE DATABASE copied TEMPLATE {OTHER}")
    try:
        once, original = Once(postgres.url("copied")), Once(elsewhere)
        assert once.run("op", "k", lambda attempt: "ran").value == "ran"
        for engine, url in ((once, elsewhere), (original, postgres.url("copied"))):
            with (
                psycopg.connect(url) as connection,
                pytest.raises(ConfigurationError, match="leads to database"),
            ):
                engine.in_transaction(connection).run("op", "k", lambda attempt: None)
        once.close()
        original.close()
    finally:
        postgres.drop_database("copied")


def test_recreated_tables_are_recognized(
    run_scenario_on_drivers: RunScenario, elsewhere: str
) -> None:
    async def scenario(caller: Caller) -> None:
        schema = "remade"
        async with engine_on(caller, caller.url, schema=schema) as once:
            await resolved(once.get("order", "k"))
            postgres = server()
            postgres.execute(f"DROP SCHEMA {schema} CASCADE", database=DATABASE)
            made = PostgresStore(database(None), schema=schema)
            made.prepare()
            made.close()
            async with caller.transaction():
                await caller.run_on(once.in_transaction(caller.subject), "k")
            assert orders() == ["tea"]

    run_scenario_on_drivers(scenario)
