"""The commands on a real PostgreSQL, and on one that is down or missing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.cli.conftest import Command, Ran
from tests.support.postgres_stores import pooler, server
from tests.support.servers.processes import wait_until

from oncekey import Once, Policy
from oncekey.cli.output import ExitCode
from oncekey.stores.postgres import PostgresStore, inspect
from oncekey.stores.postgres.queries import Layout, make_migrations
from oncekey.stores.postgres.schema import upgrade_script

HOUR_US = 3_600_000_000
ALL_STEPS = [step.name for step in make_migrations(Layout("any"))]
ON_A_STORE = [("sweep",), ("migrate",), ("show", "charge", "k")]


@pytest.fixture
def schema() -> Iterator[str]:
    name = f"cli_{uuid4().hex[:12]}"
    server()
    yield name
    server().execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def url(schema: str) -> str:
    return f"{server().url()}?schema={schema}"


def has_schema(schema: str) -> bool:
    return bool(server().execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,))[0][0])


def assert_one_line(ran: Ran, code: ExitCode, *words: str) -> None:
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


# --- migrate -----------------------------------------------------------------------------------


def test_migrate_creates_the_tables_and_then_changes_nothing(here: Command, url: str) -> None:
    first = here("migrate", url, "--json")
    assert (first.code, first.err) == (ExitCode.OK, "")
    assert first.data["applied"] == ALL_STEPS
    assert (first.data["before"], first.data["version"]) == (0, len(ALL_STEPS))
    assert first.data["guarantee"] == "transactional"
    assert first.data["clock"] == "server"
    assert "on disk" in first.data["reason"]
    again = here("migrate", url, "--json").data
    assert again["applied"] == []
    assert again["before"] == again["version"] == len(ALL_STEPS)
    assert "up to date" in here("migrate", url).out


def test_migrate_ignores_migrate_false_and_layout_options(here: Command, url: str) -> None:
    """The application's URL may say migrate=false; this command migrates all the same."""
    assert here("migrate", f"{url}&migrate=false", "--json").data["applied"] == ALL_STEPS
    ran = here("migrate", f"{url}&retention=ring")
    assert_one_line(ran, ExitCode.USAGE, "made for retention 'plain'")


def test_an_older_schema_is_brought_up_to_date_by_migrate_only(
    here: Command, url: str, schema: str
) -> None:
    layout = Layout(schema)
    server().execute(upgrade_script(layout, make_migrations(layout)[:3]))
    for name, *rest in (("sweep",), ("show", "charge", "k")):
        ran = here(name, url, *rest)
        assert_one_line(ran, ExitCode.USAGE, "older release", "views", "oncekey migrate")
    assert inspect(url).version == 3
    ran = here("migrate", url, "--json")
    assert (ran.data["before"], ran.data["version"]) == (3, len(ALL_STEPS))
    assert ran.data["applied"] == ALL_STEPS[3:]


def test_several_hosts_may_migrate_at_once(executable: str, url: str, schema: str) -> None:
    """All of them wait at a barrier until each has seen that the schema is missing."""
    count = 3
    lock = Layout(schema).seed
    with psycopg.connect(server().url(), autocommit=True) as door:
        door.execute("SELECT pg_advisory_lock(%s::bigint)", (lock,))
        hosts = [
            subprocess.Popen([executable, "migrate", url, "--json"], stdout=subprocess.PIPE)
            for _ in range(count)
        ]
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: server().execute(waiting)[0][0] >= count, "all of them wait")
        door.execute("SELECT pg_advisory_unlock(%s::bigint)", (lock,))
    for host in hosts:
        out, _ = host.communicate(timeout=60)
        assert host.returncode == ExitCode.OK
        assert json.loads(out)["version"] == len(ALL_STEPS)
    applied = server().execute(f"SELECT name FROM {schema}.migrations ORDER BY version")  # noqa: S608
    assert [name for (name,) in applied] == ALL_STEPS


@pytest.mark.parametrize("options", ["", "&retention=ring&ring_slots=4"])
def test_the_migration_script_can_be_run_by_hand_and_twice(
    here: Command, url: str, options: str
) -> None:
    url += options
    script = here("migrate", url, "--sql")
    assert (script.code, script.err) == (ExitCode.OK, "")
    assert not inspect(url).exists, "printing it changes nothing"
    psql = [str(server().bin / "psql"), server().url(), "-q", "-v", "ON_ERROR_STOP=1"]
    for _ in range(2):
        done = subprocess.run(psql, input=script.out, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert here("migrate", url, "--json").data["applied"] == []
    with Once(url, policy=Policy(keep="1h", audit="1h")) as once:
        assert once.run("charge", "k", lambda attempt: 1).value == 1
    assert here("migrate", url, "--sql", "--json").data["sql"] == script.out


def test_the_migration_script_needs_no_server(here: Command) -> None:
    ran = here("migrate", "postgresql://127.0.0.1:1/x?schema=elsewhere", "--sql")
    assert ran.code == ExitCode.OK
    assert 'CREATE SCHEMA "elsewhere"' in ran.out


def test_the_commands_work_through_a_pooler(here: Command, schema: str) -> None:
    url = f"{pooler().url('postgres')}?schema={schema}&pooler=true"
    assert here("migrate", url, "--json").data["applied"] == ALL_STEPS
    with Once(url) as once:
        once.run("charge", "k", lambda attempt: "paid")
    assert here("show", url, "charge", "k", "--bodies", "--json").data["value"] == "paid"
    assert here("sweep", url).code == ExitCode.OK


# --- show --------------------------------------------------------------------------------------


def checkout(attempt: Any) -> dict[str, str]:
    attempt.step("inventory:reserve", lambda key: {"hold": "h_1", "status": "held"})
    with pytest.raises(ZeroDivisionError):
        attempt.step("payment:charge", lambda key: 1 // 0)
    return {"order": "o_1"}


def test_show_prints_steps_with_their_results(here: Command, url: str) -> None:
    with Once(url) as once:
        once.run("checkout", "cart-1", checkout)
        status = once.get("checkout", "cart-1")
    assert status is not None
    ran = here("show", url, "checkout", "cart-1", "--bodies", "--json")
    assert ran.code == ExitCode.OK
    assert ran.data["value"] == {"order": "o_1"}
    done, begun = ran.data["steps"]
    assert done["value"] == {"hold": "h_1", "status": "held"}
    assert done["at"] == status.steps[0].at.isoformat()
    assert (begun["done"], begun["value"]) == (False, None)
    assert begun["intent"] == status.steps[1].intent
    text = here("show", url, "checkout", "cart-1", "--bodies").out
    assert '{"hold": "h_1", "status": "held"}' in text
    assert f"sent with the key {status.steps[1].intent}" in text


def test_show_history_prints_past_generations(here: Command, url: str, schema: str) -> None:
    hours_ago = time.time_ns() // 1_000 - 3 * HOUR_US
    past = PostgresStore(server().url(), schema=schema, clock=lambda: hours_ago)
    with Once(past, policy=Policy(keep="1h")) as once:
        once.run("charge", "order-1", lambda attempt: "first")
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "second")
    look = ("show", url, "charge", "order-1", "--bodies")
    ran = here(*look, "--history", "--json")
    assert ran.data["value"] == "second"
    assert [then["value"] for then in ran.data["history"]] == ["first"]
    assert ran.data["history"][0]["expired"] is True
    assert "history" not in here(*look, "--json").data
    text = here(*look, "--history").out
    assert "past generation" in text
    assert text.index('"second"') < text.index('"first"')


def test_show_and_sweep_create_no_tables(here: Command, url: str, schema: str) -> None:
    for name, *rest in (("sweep",), ("show", "charge", "k")):
        assert_one_line(here(name, url, *rest), ExitCode.USAGE, schema, "oncekey migrate")
    assert not has_schema(schema)


def test_show_of_a_new_store_on_postgresql_does_not_bind_its_secret(
    here: Command, url: str
) -> None:
    here("migrate", url)
    assert here("show", url, "charge", "order-1").code == ExitCode.NOT_FOUND
    assert here("sweep", url).code == ExitCode.OK
    with Once(url, secret="correct horse battery") as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    ran = here("show", url, "charge", "order-1")
    assert_one_line(ran, ExitCode.USAGE, "another secret", "--secret-env")
    look = ("show", url, "charge", "order-1", "--secret-env", "S", "--bodies", "--json")
    assert here(*look, S="correct horse battery").data["value"] == "paid"


def test_list_show_and_stats_need_only_read_permission(
    here: Command, url: str, schema: str
) -> None:
    role = f"support_{schema}"
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    for sql in (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
    ):
        server().execute(sql)
    theirs = f"{server().url(user=role)}?schema={schema}"
    try:
        ran = here("show", theirs, "charge", "order-1", "--history", "--bodies", "--json")
        assert (ran.code, ran.data["value"]) == (ExitCode.OK, "paid")
        assert len(here("list", theirs, "--json").data["keys"]) == 1
        assert here("show", theirs, "--tag", ran.data["tag"]).code == ExitCode.OK
        assert here("show", theirs, "--key", "order-1").code == ExitCode.OK
        assert here("stats", theirs).code == ExitCode.OK
        failed = here("release", theirs, "--tag", ran.data["tag"], "--by", "a", "--why", "b", "-y")
        assert (failed.code, "it has succeeded" in failed.err) == (ExitCode.FAILED, True)
        server().execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}")
        for words in (("show", "charge", "order-1"), ("list",), ("stats",)):
            ran = here(words[0], theirs, *words[1:])
            assert_one_line(ran, ExitCode.FAILED, "lacks rights", "42501")
    finally:
        server().execute(f"DROP OWNED BY {role}")
        server().execute(f"DROP ROLE {role}")


# --- sweep -------------------------------------------------------------------------------------


def fill(schema: str, **options: Any) -> None:
    """Stores three keys in two generations, all of them expired."""
    clock = [time.time_ns() // 1_000 - 12 * HOUR_US]
    store = PostgresStore(server().url(), schema=schema, clock=lambda: clock[0], **options)
    policy = Policy(lease="1m", keep="1h", audit="2h")
    with Once(store, policy=policy, cache=0) as once:
        for _ in range(2):
            for number in range(3):
                once.run("charge", f"old-{number}", lambda attempt: None)
            clock[0] += int(1.5 * HOUR_US)


def test_sweep_tier_removes_one_tier_only(here: Command, url: str, schema: str) -> None:
    fill(schema)
    ran = here("sweep", url, "--tier", "audit", "--limit", "2", "--json")
    assert (ran.data["removed"], ran.data["batches"]) == (3, 2)
    assert here("sweep", url, "--tier", "audit", "--json").data["removed"] == 0
    assert here("sweep", url, "--tier", "keys", "--once", "--json").data["removed"] == 3
    assert here("sweep", url, "--json").data["removed"] == 0


def test_the_ring_is_swept_slot_by_slot(here: Command, url: str, schema: str) -> None:
    fill(schema, retention="ring", ring_slots=8, ring_period="3h")
    ring = f"{url}&retention=ring&ring_slots=8&ring_period=3h"
    with Once(ring, policy=Policy(keep="1h", audit="1h")) as once:
        once.run("charge", "new", lambda attempt: None)
    assert here("sweep", ring, "--tier", "audit", "--json").data["removed"] == 3
    assert here("sweep", ring, "--json").data["removed"] == 3
    assert here("show", ring, "charge", "new").code == ExitCode.OK
    assert here("show", ring, "charge", "old-1").code == ExitCode.NOT_FOUND


# --- a server that is not there, and passwords ---------------------------------------------------


@pytest.mark.parametrize("command", ON_A_STORE)
@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:1", "nowhere.invalid"])
def test_a_server_that_is_down_gives_one_line(
    here: Command, command: tuple[str, ...], host: str
) -> None:
    name, *rest = command
    ran = here(name, f"postgresql://bob:hunter-two@{host}/shop", *rest)
    assert_one_line(ran, ExitCode.FAILED, "oncekey: the server cannot be reached", "is it running")
    assert "hunter" not in ran.err


def test_a_database_that_is_not_there_is_named(here: Command) -> None:
    ran = here("migrate", server().url("no-such-database"))
    assert ran.code in (ExitCode.FAILED, ExitCode.USAGE)
    assert "no such database" in ran.err


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql://bob:hunter%zz-two@host/shop",
        "postgresql://bob:hunter two@host/shop",
        "postgresql://bob:hunter-two@[host/shop",
        "postgresql://bob:hunter-two@host/shop?schmea=x",
        "postgresql://bob:hunter-two@host/shop?claim=hunter-two",
        "postgresql://bob@host/shop?password=hunter-two&claim=no",
        "postgresql://bob@host/shop?sslpassword=hunter-two&claim=no",
        "host=db user=bob password=hunter-two",
        "host=db user=bob password='hunter two'",
    ],
)
@pytest.mark.parametrize("command", [*ON_A_STORE, ("migrate", "--sql")])
def test_an_error_about_a_url_does_not_show_its_password(
    here: Command, command: tuple[str, ...], bad: str
) -> None:
    name, *rest = command
    ran = here(name, bad, *rest)
    assert_one_line(ran, ExitCode.USAGE)
    assert "hunter" not in ran.err
    assert "two" not in ran.err


def test_no_result_shows_a_password(here: Command, schema: str) -> None:
    with_password = server().url().replace("@", ":hunter-two@")
    url = f"{with_password}?schema={schema}&sslpassword=hunter-three"
    for form in ((), ("--json",)):
        for name, *rest in (*ON_A_STORE[::-1], ("sweep",), ("migrate", "--sql")):
            ran = here(name, url, *rest, *form)
            assert "hunter" not in ran.out + ran.err
