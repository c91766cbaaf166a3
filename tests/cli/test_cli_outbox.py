"""`oncekey migrate --outbox` makes the table of the outbox, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.cli.conftest import Command
from tests.support.postgres_stores import server

from oncekey import Once
from oncekey.cli.output import ExitCode
from oncekey.queues.outbox import Outbox


def test_migrate_makes_the_outbox_of_a_file_and_says_so(here: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    assert "its table is there" not in here("migrate", url).out
    for _ in range(2):
        assert "its table is there" in here("migrate", url, "--outbox").out
    assert here("migrate", url, "--outbox", "--json").data["outbox"] is True
    with Once(url) as once:
        assert Outbox(once).stats().waiting == 0


@pytest.mark.parametrize("by", ["the command", "its script"])
def test_migrate_makes_the_outbox_of_a_schema(here: Command, by: str) -> None:
    schema = f"cli_{uuid4().hex[:12]}"
    url = f"{server().url()}?schema={schema}"
    try:
        for _ in range(2):
            if by == "the command":
                assert here("migrate", url, "--outbox").code == ExitCode.OK
                continue
            script = here("migrate", url, "--outbox", "--sql").out
            with psycopg.connect(server().url(), autocommit=True) as connection:
                connection.execute(script.encode())
        with Once(f"{url}&migrate=false") as once, psycopg.connect(server().url()) as connection:
            outbox = Outbox(once)
            outbox.add(connection, "q", "a")
            connection.commit()
            assert outbox.stats().waiting == 1
    finally:
        server().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def test_a_store_without_an_outbox_is_refused(here: Command) -> None:
    ran = here("migrate", "redis://127.0.0.1:1/0", "--outbox")
    assert ran.code == ExitCode.USAGE


def test_sqlite3_reads_the_table_by_hand(here: Command, tmp_path: Path) -> None:
    here("migrate", f"sqlite:///{tmp_path}/keys.db", "--outbox")
    connection = sqlite3.connect(tmp_path / "keys.db")
    assert connection.execute("SELECT id, queue, error FROM oncekey_outbox").fetchall() == []
    connection.close()
