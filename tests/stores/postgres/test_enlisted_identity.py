"""`in_transaction` takes a connection to the store's own database, and no other.

With one to another database, or to a copy of this one, the keys would be looked for in the wrong
place: nothing would fail, and everything would run twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import NEVER, Shop, done, rows
from tests.support.caller_connections.database import DATABASE, database
from tests.support.postgres_stores import server

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore

OTHER = "another_shop"


@asynccontextmanager
async def engine_on(shop: Shop, url: str, **options: Any) -> AsyncIterator[Any]:
    """An engine of the shop's colour whose store is elsewhere."""
    store = AsyncPostgresStore if shop.is_async else PostgresStore
    once: Any = AsyncOnce if shop.is_async else Once
    made = once(store(url, **options), cache=0)
    try:
        yield made
    finally:
        await done(made.close())


@pytest.fixture(scope="module")
def elsewhere() -> Any:
    postgres = server()
    postgres.drop_database(OTHER)
    yield postgres.create_database(OTHER)
    postgres.drop_database(OTHER)


def test_a_connection_to_another_database_is_refused(play: Play, elsewhere: str) -> None:
    """Both have the tables."""

    async def scene(shop: Shop) -> None:
        async with engine_on(shop, elsewhere) as once:
            await shop.begin()
            tx = once.in_transaction(shop.subject)
            for _ in range(2):  # also when it is tried again
                with pytest.raises(ConfigurationError) as told:
                    await shop.run_in(tx, "k", NEVER)
                assert f"leads to database '{DATABASE}' on 127.0.0.1" in str(told.value)
                assert f"is in database '{OTHER}' on 127.0.0.1" in str(told.value)
            with pytest.raises(ConfigurationError, match="leads to database"):
                await done(tx.get("order", "k"))
            await shop.execute("INSERT INTO orders VALUES ('after')")  # it was not spoilt
            await shop.commit()
        assert (shop.ran, rows()) == (0, ["after"])

    play(scene)


def test_a_connection_to_where_the_schema_is_missing_is_told_so(
    play_on_driver: Play, elsewhere: str
) -> None:
    async def scene(shop: Shop) -> None:
        async with engine_on(shop, elsewhere, schema="only_there") as once:
            await shop.begin()
            with pytest.raises(ConfigurationError) as told:
                await shop.run_in(once.in_transaction(shop.subject), "k", NEVER)
            await shop.rollback()
        said = str(told.value)
        assert "a database without oncekey's schema 'only_there'" in said
        assert f"the store is in database '{OTHER}'" in said
        assert "oncekey migrate" in said

    play_on_driver(scene)


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


def test_tables_that_were_made_anew_are_known_again(play_on_driver: Play, elsewhere: str) -> None:
    async def scene(shop: Shop) -> None:
        schema = "remade"
        async with engine_on(shop, shop.url, schema=schema) as once:
            await done(once.get("order", "k"))
            postgres = server()
            postgres.execute(f"DROP SCHEMA {schema} CASCADE", database=DATABASE)
            made = PostgresStore(database(None), schema=schema)
            made.prepare()
            made.close()
            async with shop.transaction():
                await shop.run_in(once.in_transaction(shop.subject), "k")
            assert rows() == ["tea"]

    play_on_driver(scene)
