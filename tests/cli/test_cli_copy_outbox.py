"""`oncekey copy` does not finish while messages wait in the outbox that would stay behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.cli.conftest import Command
from tests.support.postgres_stores import server

from oncekey import ConfigurationError, Once
from oncekey.cli.output import ExitCode
from oncekey.queues.outbox import Outbox, OutboxPublisher
from oncekey.queues.outbox.outgoing_message import OutgoingMessage


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store with a key and two waiting messages."""
    schema = f"cli_{uuid4().hex[:12]}"
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/old.db" if is_file else f"{server().url()}?schema={schema}"
    with Once(url) as once:
        once.run("op", "k", lambda attempt: "first")
        outbox = Outbox(once)
        outbox.create_table()
        path, address = tmp_path / "old.db", server().url() if not is_file else ""
        with closing(sqlite3.connect(path) if is_file else psycopg.connect(address)) as rows:
            for key in ("m1", "m2"):
                outbox.add(rows, "mails", "hello", key=key)
            rows.commit()
    yield url
    if not is_file:
        server().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def publish(url: str, sender: object, **options: object) -> int:
    publisher = OutboxPublisher(url, sender, **options)  # type: ignore[arg-type]
    with closing(publisher.once):
        return publisher.publish_due()


def sent(message: OutgoingMessage) -> None:
    """The broker has it."""


def refused(message: OutgoingMessage) -> None:
    raise ValueError("no such queue")


def test_a_copy_does_not_finish_while_messages_wait(
    here: Command, old: str, tmp_path: Path
) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    done = here("copy", old, new, "--yes")
    assert done.code == ExitCode.FAILED
    assert "2 messages wait in the outbox of the old store" in done.err
    assert "--keep-outbox" in done.err
    assert "complete: restart" not in done.out
    with pytest.raises(ConfigurationError, match="still being filled"):
        Once(new)
    Once(old).close()  # it was not left
    assert publish(old, sent) == 2
    done = here("copy", old, new, "--yes", "--json")
    assert (done.code, done.data["complete"]) == (ExitCode.OK, True)
    assert (done.data["outbox_waiting"], done.data["outbox_parked"]) == (0, 0)


def test_a_copy_does_not_finish_while_messages_are_parked(
    here: Command, old: str, tmp_path: Path
) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    assert publish(old, refused, max_tries=1) == 0
    done = here("copy", old, new, "--yes", "--json")
    assert (done.code, done.data["complete"]) == (ExitCode.FAILED, False)
    assert (done.data["outbox_waiting"], done.data["outbox_parked"]) == (0, 2)
    assert "2 are parked" in done.err


def test_an_outbox_that_is_kept_stays_in_use_after_the_move(
    here: Command, old: str, tmp_path: Path
) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    done = here("copy", old, new, "--yes", "--json", "--keep-outbox")
    assert (done.code, done.data["complete"]) == (ExitCode.OK, True)
    assert done.data["outbox_waiting"] == 2
    assert publish(old, sent) == 2
