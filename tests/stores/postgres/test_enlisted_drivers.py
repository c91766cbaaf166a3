"""Drivers' own connections: what a caller has set there neither disturbs nor is disturbed."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from tests.stores.postgres.conftest import Stage
from tests.support.caller_connections import INSERT, NEVER, Shop, done, rows
from tests.support.caller_connections.rivals import goes_as_ever

from oncekey import Once
from oncekey.core.errors import ConfigurationError

# --- psycopg ----------------------------------------------------------------------------------


class OddLoader(Loader):
    def load(self, data: Any) -> Any:
        return "odd"


class OddDumper(Dumper):
    def dump(self, obj: Any) -> Any:
        raise AssertionError("a dumper of the caller's")


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_the_callers_factories_and_adapters_have_no_part_in_it(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        async with type(shop)() as odd:
            odd.db.row_factory = dict_row
            is_async = odd.is_async
            odd.db.cursor_factory = psycopg.AsyncClientCursor if is_async else psycopg.ClientCursor
            for name in ("int2", "int4", "int8", "bool", "bytea", "text", "uuid"):
                odd.db.adapters.register_loader(name, OddLoader)
            for one in (int, str, bytes, bool, type(None)):
                odd.db.adapters.register_dumper(one, OddDumper)
            await goes_as_ever(odd)

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
@pytest.mark.parametrize("threshold", [0, None])
def test_prepared_from_the_start_or_never(stage: Stage, kind: str, threshold: int | None) -> None:
    async def scene(shop: Shop) -> None:
        async with type(shop)() as other:
            other.db.prepare_threshold = threshold
            await goes_as_ever(other)

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_a_pipeline_is_for_the_body_alone(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        def blocking(attempt: Any) -> None:
            with shop.db.pipeline():
                shop.send(INSERT)
                shop.send(INSERT)

        async def awaited(attempt: Any) -> None:
            async with shop.db.pipeline():
                await shop.send(INSERT)
                await shop.send(INSERT)

        tx = shop.once.in_transaction(shop.subject)
        body = awaited if shop.is_async else blocking
        async with shop.transaction():
            await done(tx.run("order", "k", body))
        assert rows() == ["tea", "tea"]
        await shop.begin()
        around = shop.db.pipeline()
        await done(around.__aenter__() if shop.is_async else around.__enter__())
        with pytest.raises(ConfigurationError, match="in pipeline mode"):
            await done(tx.run("order", "k2", body))
        ends = around.__aexit__ if shop.is_async else around.__exit__
        await done(ends(None, None, None))
        await shop.rollback()

    stage.play(kind, scene, {})


def test_a_transaction_of_plain_sql(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        await shop.execute("BEGIN")
        await shop.inside("k")
        await shop.execute("COMMIT")
        assert (rows(), await shop.state("k")) == (["tea"], "succeeded")

    for kind in ("psycopg", "psycopg-async", "asyncpg"):
        stage.play(kind, scene, {})


def test_what_is_set_for_a_transaction_ends_with_it(stage: Stage) -> None:
    """A key that runs wants its commit to be durable, whatever the session has chosen."""

    async def scene(shop: Shop) -> None:
        def settings() -> list[str]:
            names = ("synchronous_commit", "oncekey.running", "oncekey.open_savepoints")
            asked = "SELECT current_setting(%s, true)"
            return [shop.db.execute(asked, (name,)).fetchone()[0] or "" for name in names]

        for mode in ("off", "local"):
            shop.db.execute(f"SET synchronous_commit = {mode}")
            with shop.db.transaction():
                await shop.inside(mode)
                await shop.inside(f"{mode} again")
                assert settings() == ["on", "", "2"]
            assert settings() == [mode, "", ""]
            with shop.db.transaction():
                await shop.inside(mode, NEVER)
                assert settings() == [mode, "", ""]
        shop.db.execute("RESET synchronous_commit")

    stage.play("psycopg", scene, {})


# --- asyncpg ----------------------------------------------------------------------------------


def test_codecs_and_records_of_the_callers(stage: Stage) -> None:
    class Mine(asyncpg.Record):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    async def scene(shop: Shop) -> None:
        async with type(shop)() as odd:
            await odd.db.close()
            odd.db = await asyncpg.connect(odd.url, record_class=Mine)
            for name in ("uuid", "json", "numeric"):
                await odd.db.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")
            await goes_as_ever(odd)

    stage.play("asyncpg", scene, {})


# --- wrong kinds ------------------------------------------------------------------------------


def test_other_things_are_refused_before_anything_is_reached() -> None:
    once = Once("postgresql://nobody@127.0.0.1:1/x")
    for thing in (None, object(), "psycopg", create_engine("sqlite://"), psycopg.RawCursor):
        with pytest.raises(ConfigurationError, match="it takes a psycopg Connection, an SQLAlch"):
            once.in_transaction(thing)
    once.close()


def test_each_colour_names_what_it_takes(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        async with type(shop)() as other:
            blocking = Once(shop.url)
            with pytest.raises(ConfigurationError, match="it takes a psycopg Connection, an SQL"):
                blocking.in_transaction(other.db)
            blocking.close()
            with (
                psycopg.connect(shop.url) as wrong,
                pytest.raises(
                    ConfigurationError, match="Connection; it takes an asyncpg connection"
                ),
            ):
                shop.once.in_transaction(wrong)

    stage.play("psycopg-async", scene, {})


@pytest.mark.parametrize("options", [{"claim": "portable"}, {"transactional": False}])
def test_stores_that_do_not_take_part_say_so(stage: Stage, options: dict[str, Any]) -> None:
    async def scene(shop: Shop) -> None:
        with pytest.raises(ConfigurationError, match="needs advisory locks"):
            shop.once.in_transaction(shop.subject)

    for kind in ("psycopg", "asyncpg"):
        stage.play(kind, scene, options)
