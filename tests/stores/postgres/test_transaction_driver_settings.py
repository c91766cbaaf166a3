"""A caller's settings of its connection neither affect the store nor are changed by it."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import (
    INSERT,
    MUST_NOT_RUN,
    Body,
    Caller,
    orders,
    query,
    resolved,
)
from tests.support.caller_connections.concurrent_commands import check_run_replay_and_failure

from oncekey import Once
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_connections import psycopg as psycopg_connections

# --- psycopg ----------------------------------------------------------------------------------


class OddLoader(Loader):
    def load(self, data: Any) -> Any:
        return "odd"


class OddDumper(Dumper):
    def dump(self, obj: Any) -> Any:
        raise AssertionError("a dumper of the caller's")


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_the_callers_factories_and_adapters_are_not_used(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as odd:
            odd.db.row_factory = dict_row
            is_async = odd.is_async
            odd.db.cursor_factory = psycopg.AsyncClientCursor if is_async else psycopg.ClientCursor
            for name in ("int2", "int4", "int8", "bool", "bytea", "text", "uuid"):
                odd.db.adapters.register_loader(name, OddLoader)
            for one in (int, str, bytes, bool, type(None)):
                odd.db.adapters.register_dumper(one, OddDumper)
            await check_run_replay_and_failure(odd)

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
@pytest.mark.parametrize("threshold", [0, None])
def test_any_prepare_threshold_of_the_callers_works(
    open_callers: OpenCallers, kind: str, threshold: int | None
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:
            other.db.prepare_threshold = threshold
            await check_run_replay_and_failure(other)

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_a_prepared_connection_runs_without_a_cursor(
    open_callers: OpenCallers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A cursor would cost more than the rest of a run's messages."""

    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.run_inside("prepares the query")
        made: list[Any] = []
        for name in ("_Cursor", "_AsyncCursor"):
            monkeypatch.setattr(psycopg_connections, name, made.append)
        async with caller.transaction():
            await caller.run_inside("k")
        assert (made, await caller.state("k")) == ([], "succeeded")

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_prepared_queries_may_be_deallocated_by_the_caller(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:
            async with other.transaction():
                await other.run_inside("prepares the query")
            for key in ("k1", "k2"):
                async with other.transaction():
                    await other.execute("DEALLOCATE ALL")
                    await other.run_inside(key)
                    await other.run_inside(f"{key} again")
        assert orders() == ["tea"] * 5

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_a_deallocation_that_psycopg_misses_fails_one_run_and_loses_nothing(
    open_callers: OpenCallers, kind: str
) -> None:
    """psycopg looks at a statement's result once: if nothing was prepared when it first saw a
    DEALLOCATE ALL, it misses the next one. The failed run is rolled back, which psycopg notices."""

    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:
            async with other.transaction():
                await other.execute("DEALLOCATE ALL")
                await other.run_inside("prepares the query")
            async with other.transaction():
                await other.execute("DEALLOCATE ALL")
            with pytest.raises(psycopg.errors.InvalidSqlStatementName):
                async with other.transaction():
                    await other.run_inside("k")
            assert (orders(), await other.state("k")) == (["tea"], None)
            async with other.transaction():
                await other.run_inside("k")
        assert orders() == ["tea"] * 2

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_a_scope_is_stored_in_the_connections_encoding(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:
            async with other.transaction():
                await other.run_inside("prepares the query")
            await resolved(other.db.execute("SET client_encoding = 'LATIN2'"))
            tx = other.once.in_transaction(other.db)
            for replayed in (False, True):
                async with other.transaction():
                    run = tx.run("order", "k", other.make_body(Body()), scope="\u0141\u00f3d\u017a")
                    assert (await resolved(run)).replayed is replayed
            stored = query("SELECT DISTINCT scope FROM oncekey.records WHERE scope <> ''")
            assert stored == [("\u0141\u00f3d\u017a",)]

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async"])
def test_a_pipeline_is_allowed_inside_the_body_only(open_callers: OpenCallers, kind: str) -> None:
    async def scenario(caller: Caller) -> None:
        def blocking(attempt: Any) -> None:
            with caller.db.pipeline():
                caller.send(INSERT)
                caller.send(INSERT)

        async def awaited(attempt: Any) -> None:
            async with caller.db.pipeline():
                await caller.send(INSERT)
                await caller.send(INSERT)

        tx = caller.once.in_transaction(caller.subject)
        body = awaited if caller.is_async else blocking
        async with caller.transaction():
            await resolved(tx.run("order", "k", body))
        assert orders() == ["tea", "tea"]
        await caller.begin()
        around = caller.db.pipeline()
        await resolved(around.__aenter__() if caller.is_async else around.__enter__())
        with pytest.raises(ConfigurationError, match="in pipeline mode"):
            await resolved(tx.run("order", "k2", body))
        ends = around.__aexit__ if caller.is_async else around.__exit__
        await resolved(ends(None, None, None))
        await caller.rollback()

    open_callers.run_scenario(kind, scenario, {})


def test_a_transaction_begun_with_plain_sql_works(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.execute("BEGIN")
        await caller.run_inside("k")
        await caller.execute("COMMIT")
        assert (orders(), await caller.state("k")) == (["tea"], "succeeded")

    for kind in ("psycopg", "psycopg-async", "asyncpg"):
        open_callers.run_scenario(kind, scenario, {})


def test_settings_of_a_transaction_end_with_it(open_callers: OpenCallers) -> None:
    """The commit of a transaction with a key must be durable, whatever the session's setting."""

    async def scenario(caller: Caller) -> None:
        def settings() -> list[str]:
            names = ("synchronous_commit", "oncekey.running", "oncekey.open_savepoints")
            asked = "SELECT current_setting(%s, true)"
            return [caller.db.execute(asked, (name,)).fetchone()[0] or "" for name in names]

        for mode in ("off", "local"):
            caller.db.execute(f"SET synchronous_commit = {mode}")
            with caller.db.transaction():
                await caller.run_inside(mode)
                await caller.run_inside(f"{mode} again")
                assert settings() == ["on", "", "2"]
            assert settings() == [mode, "", ""]
            with caller.db.transaction():
                await caller.run_inside(mode, MUST_NOT_RUN)
                assert settings() == [mode, "", ""]
        caller.db.execute("RESET synchronous_commit")

    open_callers.run_scenario("psycopg", scenario, {})


# --- asyncpg ----------------------------------------------------------------------------------


def test_the_callers_asyncpg_codecs_and_record_class_are_not_used(
    open_callers: OpenCallers,
) -> None:
    class Mine(asyncpg.Record):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    async def scenario(caller: Caller) -> None:
        async with type(caller)() as odd:
            await odd.db.close()
            odd.db = await asyncpg.connect(odd.url, record_class=Mine)
            for name in ("uuid", "json", "numeric"):
                await odd.db.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")
            await check_run_replay_and_failure(odd)

    open_callers.run_scenario("asyncpg", scenario, {})


# --- wrong kinds ------------------------------------------------------------------------------


def test_unsupported_objects_are_refused_without_a_connection() -> None:
    once = Once("postgresql://nobody@127.0.0.1:1/x")
    for thing in (None, object(), "psycopg", create_engine("sqlite://"), psycopg.RawCursor):
        with pytest.raises(ConfigurationError, match="it takes a psycopg Connection, an SQLAlch"):
            once.in_transaction(thing)
    once.close()


def test_the_refusal_names_the_supported_connections(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:
            blocking = Once(caller.url)
            with pytest.raises(ConfigurationError, match="it takes a psycopg Connection, an SQL"):
                blocking.in_transaction(other.db)
            blocking.close()
            with (
                psycopg.connect(caller.url) as wrong,
                pytest.raises(
                    ConfigurationError, match="Connection; it takes an asyncpg connection"
                ),
            ):
                caller.once.in_transaction(wrong)

    open_callers.run_scenario("psycopg-async", scenario, {})


@pytest.mark.parametrize("options", [{"claim": "portable"}, {"transactional": False}])
def test_stores_without_advisory_locks_refuse_transactions(
    open_callers: OpenCallers, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        with pytest.raises(ConfigurationError, match="needs advisory locks"):
            caller.once.in_transaction(caller.subject)

    for kind in ("psycopg", "asyncpg"):
        open_callers.run_scenario(kind, scenario, options)
