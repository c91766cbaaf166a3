"""Counters of effects: what each asks, what it makes of the answer, and how it fails."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres_stores import server
from tests.verify.json_server import Received, Reply, serving
from tests.verify.sample_verification import exchange, operation

from oncekey.core.errors import ConfigurationError
from oncekey.verify import effect_counters
from oncekey.verify.count_query import check_query
from oncekey.verify.effect_counters import (
    CommandCounter,
    ResponseIdCounter,
    SqlCounter,
    UrlCounter,
)
from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import Exchange, Headers, WireResponse
from oncekey.verify.target import Caller, CountFailed, EffectCounter, Operation
from oncekey.verify.target_settings import split_url


def count(
    counter: EffectCounter, made: Operation | None = None, exchanges: Sequence[Exchange] = ()
) -> int:
    return asyncio.run(counter.count(made or operation(), exchanges))


def success(made: Operation, body: str = "{}", headers: Headers = ()) -> Exchange:
    return exchange(made.request(), 201, body, sent=1.0, answered=2.0, headers=headers)


def url_counter(url: str, path: str = "", match: str = "") -> UrlCounter:
    origin, url_path = split_url(url)
    caller = Caller("counter", (("Authorization", "Bearer t"),))
    return UrlCounter(origin, url_path, path, match, caller)


# --- a URL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        (3, "", 3),
        ([1, 2], "", 2),
        ({"total": 4}, "$.total", 4),
        ({"data": {"charges": [{}, {}]}}, "$.data.charges", 2),
        ({"data": {"charges": [{}, {}]}}, "data.charges[*]", 2),
        ({"shops": [{"charges": [1]}, {"charges": [2, 3]}]}, "$.shops[*].charges[*]", 3),
        ({"a b": [[], [1, 2]]}, "$['a b'][-1]", 2),
    ],
)
def test_a_url_gives_a_number_or_a_list(document: object, path: str, expected: int) -> None:
    with serving(lambda received: Reply(200, document)) as url:
        assert count(url_counter(url, path)) == expected


def test_a_url_is_asked_with_the_operations_values_and_the_callers_headers() -> None:
    asked: list[Received] = []

    def answer(received: Received) -> Reply:
        asked.append(received)
        return Reply(200, [{"order": made.values["unique"]}, {"order": "another"}])

    made = operation()
    with serving(answer) as url:
        counter = url_counter(f"{url}/ledger?order={{{{unique}}}}", match="{{unique}}")
        assert count(counter, made) == 1
    (received,) = asked
    assert received.path == f"/ledger?order={made.values['unique']}"
    assert received.headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("reply", "path", "message"),
    [
        (Reply(404, {}), "", "the status is 404, not 200"),
        (Reply(200, raw=b"<html>"), "", "the answer is not JSON"),
        (
            Reply(200, {"total": 1, "made": []}),
            "",
            r"the document is no list or whole number, but has one: "
            r"--count-path '\$\.total or \$\.made', or path in \[effects\]",
        ),
        (Reply(200, {"total": True}), "$.total", r"\$\.total is no list or whole number$"),
        (Reply(200, {"made": []}), "$.total", r"nothing is at \$\.total; .* '\$\.made'"),
        (Reply(200, {}), "$.total", r"nothing is at \$\.total; the document is no list"),
    ],
)
def test_an_answer_that_counts_nothing_is_told(reply: Reply, path: str, message: str) -> None:
    with (
        serving(lambda received: reply) as url,
        pytest.raises(CountFailed, match=message),
    ):
        count(url_counter(url, path))


def test_a_url_where_nobody_listens_is_told() -> None:
    counter = UrlCounter(Origin("http", "127.0.0.1", 1), "/")
    with pytest.raises(CountFailed, match="cannot connect to"):
        count(counter)


def test_a_count_that_lacks_an_answered_effect_is_asked_for_again() -> None:
    counts = iter([0, 0, 1])
    made = operation()
    with serving(lambda received: Reply(200, next(counts))) as url:
        assert count(url_counter(url), made, [success(made)]) == 1
    assert list(counts) == []


def test_without_an_answer_a_count_of_nothing_is_believed_at_once() -> None:
    counts = iter([0, 1])
    with serving(lambda received: Reply(200, next(counts))) as url:
        assert count(url_counter(url)) == 0


def test_patience_with_a_counter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_counters, "COUNT_PATIENCE_SECONDS", 0.0)
    made = replace(operation(), before=5)
    with serving(lambda received: Reply(200, 5)) as url:
        assert count(url_counter(url), made, [success(made)]) == 5


def test_a_url_without_a_placeholder_counts_all_operations() -> None:
    assert url_counter("http://127.0.0.1/ledger").is_total
    assert not url_counter("http://127.0.0.1/ledger/{{key}}").is_total
    assert not url_counter("http://127.0.0.1/ledger", match="{{unique}}").is_total


# --- a command ------------------------------------------------------------------------------------


def command(code: str) -> CommandCounter:
    return CommandCounter((sys.executable, "-c", code))


def test_a_command_gets_the_values_in_its_environment_and_no_shell() -> None:
    made = operation()
    made = replace(made, values={**made.values, "unique": "$(exit 7); '\""})
    names = "os.environ[f'ONCEKEY_VERIFY_{name}'] for name in ('UNIQUE', 'KEY', 'NUMBER')"
    code = f"import os; unique, key, number = ({names}); print(len(unique), end=' \\n')"
    assert count(command(code), made) == len("$(exit 7); '\"")
    assert command("").is_total, "whether it uses the values is not known"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('two')", "it printed 'two' and ended with 0"),
        ("print(2); raise SystemExit(3)", "it printed '2' and ended with 3"),
        ("print(-1)", "it printed '-1'"),
    ],
)
def test_a_command_must_print_a_number_and_end_well(code: str, message: str) -> None:
    with pytest.raises(CountFailed, match=message):
        count(command(code))


def test_a_command_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_counters, "COUNT_TIMEOUT_SECONDS", 0.05)
    started: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def start_and_keep(*arguments: str, **options: Any) -> Process:
        started.append(await start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_keep)
    with pytest.raises(CountFailed, match=r"did not end within 0\.05 s"):
        count(command("import signal; signal.pause()"))
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(CountFailed, match="No such file"):
        count(CommandCounter(("./no-such-program",)))


# --- a query --------------------------------------------------------------------------------------


def sqlite_counter(path: Path, query: str) -> SqlCounter:
    return SqlCounter(f"sqlite:///{path}", "sqlite:///shown", query)


@pytest.fixture
def charges(tmp_path: Path) -> Path:
    path = tmp_path / "shop 1.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE charges (ref TEXT)")
    connection.execute("INSERT INTO charges VALUES (?), ('other')", ["it's % :key"])
    connection.commit()
    connection.close()
    return path


def odd_operation() -> Operation:
    made = operation()
    return replace(made, values={**made.values, "unique": "it's % :key"})


def test_values_are_bound_in_sqlite(charges: Path) -> None:
    query = "SELECT count(*) FROM charges WHERE ref = :unique"
    assert count(sqlite_counter(charges, query), odd_operation()) == 1
    assert not sqlite_counter(charges, query).is_total
    total = sqlite_counter(charges, "SELECT count(*) FROM charges")
    assert total.is_total
    assert count(total) == 2


def test_values_are_bound_in_postgresql() -> None:
    import psycopg

    database = server().create_database("verify-counter")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE charges (ref TEXT)")
        connection.execute("INSERT INTO charges VALUES (%s), ('100%%')", ["it's % :key"])
    query = "SELECT count(*) FROM charges WHERE ref = :unique AND ref::text NOT LIKE '100%'"
    assert count(SqlCounter(database, "shown", query), odd_operation()) == 1
    writing = SqlCounter(database, "shown", "DELETE FROM charges")
    with pytest.raises(CountFailed, match="read-only transaction"):
        count(writing)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("DELETE FROM charges", "readonly"),
        ("SELECT ref FROM charges", "not one whole number"),
        ("SELECT 1, 2", "not one whole number"),
        ("SELECT count(*) FROM orders", "no such table: orders"),
    ],
)
def test_a_query_that_counts_nothing_is_told(charges: Path, query: str, message: str) -> None:
    with pytest.raises(CountFailed, match=message):
        count(sqlite_counter(charges, query))


def test_a_query_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(CountFailed, match="unable to open database file"):
        count(sqlite_counter(tmp_path / "none.db", "SELECT 1"))
    assert not (tmp_path / "none.db").exists()


def test_a_message_of_the_driver_has_no_password() -> None:
    url = "postgresql://shop:hunter2secret@127.0.0.1:1/shop"
    with pytest.raises(CountFailed) as raised:
        count(SqlCounter(url, "shown", "SELECT 1"))
    assert "hunter2" not in str(raised.value)


def test_a_query_that_can_never_count_is_refused_early() -> None:
    with pytest.raises(ConfigurationError, match="write :unique"):
        check_query("sqlite:///x.db", "SELECT count(*) FROM c WHERE ref = '{{unique}}'")
    with pytest.raises(ConfigurationError, match="sqlite:///file or postgresql"):
        check_query("mysql://x", "SELECT 1")


# --- ids in responses -----------------------------------------------------------------------------


def test_different_ids_are_different_effects() -> None:
    made = operation()
    bodies = ('{"id": "a"}', '{"id": "a"}', '{"id": 7}')
    assert count(ResponseIdCounter(), made, [success(made, body) for body in bodies]) == 2


@pytest.mark.parametrize(
    ("body", "location", "place"),
    [
        ('{"id": %d, "data": {"id": 2}}', "", "$.id"),
        ('{"data": {"id": %d}}', "/c/%d", "$.data.id"),
        ('{"id": "the same", "data": {"id": %d}}', "/c/%d", "$.data.id"),
        ("", "/c/%d", "header:Location"),
    ],
)
def test_the_usual_places_of_ids_are_tried_in_order(body: str, location: str, place: str) -> None:
    def response(number: int) -> WireResponse:
        at = location.replace("%d", str(number))
        headers: Headers = (("location", at.encode()),) if at else ()
        exchange = success(operation(), body.replace("%d", str(number)), headers)
        assert exchange.response is not None
        return exchange.response

    found = ResponseIdCounter().narrowed(response(1), response(2))
    assert found is not None
    assert found.places == (place,)


def test_a_response_without_an_id_is_not_counted_as_none() -> None:
    made = operation()
    with pytest.raises(CountFailed, match="has no id at"):
        count(ResponseIdCounter(), made, [success(made, '{"ok": true}')])


def test_refusals_and_other_callers_count_nothing() -> None:
    made = operation()
    refused = exchange(made.request(), 409, '{"id": "problem"}', sent=1.0, answered=2.0)
    other = Caller("other caller", (("Authorization", "Bearer other"),))
    foreign = exchange(made.request(caller=other), 201, '{"id": "b"}', sent=1.0, answered=2.0)
    assert count(ResponseIdCounter(), made, [success(made, '{"id": "a"}'), refused, foreign]) == 1


def test_counters_say_what_they_do() -> None:
    counters: list[tuple[EffectCounter, str]] = [
        (url_counter("http://127.0.0.1:8/l", "$.c", "{{key}}"), "$.c, elements with {{key}}"),
        (CommandCounter(("wc", "-l")), "the command wc -l"),
        (SqlCounter("postgresql://a:secret@h/d", "shown", "SELECT\n 1"), "SELECT 1 on shown"),
        (ResponseIdCounter(), "$.id or $.data.id or header:Location"),
    ]
    for counter, expected in counters:
        assert expected in counter.describe()
        assert "secret" not in counter.describe()
    assert [counter.sees_lost_responses for counter, _ in counters] == [True, True, True, False]
