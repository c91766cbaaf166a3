"""`sweep --every`: one elected sweeper per store, until a signal, also while the store is down."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.command_runner import Start
from tests.cli.conftest import Command
from tests.support.postgres_stores import server
from tests.support.servers import Postgres, require

from oncekey.cli.exit_codes import ExitCode
from oncekey.stores.postgres import migrate

PATIENCE_SECONDS = 240


@pytest.fixture
def schema() -> Iterator[str]:
    name = f"every_{uuid4().hex[:12]}"
    migrate(f"{server().url()}?schema={name}")
    yield name
    server().execute(f"DROP SCHEMA {name} CASCADE")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sweep_every_with_exit_code_0(
    start: Start, ended: str, how: signal.Signals
) -> None:
    running = start("sweep", ended, "--every", "1h")
    assert "5 records removed" in running.line()
    assert running.end(how) == ExitCode.OK
    assert running.out.empty()
    assert running.err.empty()


def test_sweep_every_prints_a_json_document_per_sweep(start: Start, ended: str) -> None:
    running = start("sweep", ended, "--every", "1s", "--limit", "2", "--json")
    first = running.round()
    assert (first["removed"], first["batches"]) == (5, 3)
    assert (first["tier"], first["elected"]) == ("all", True)
    assert running.round()["removed"] == 0
    assert running.end(signal.SIGINT) == ExitCode.OK


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_one_sweeper_is_elected_and_another_follows_it(
    start: Start, kind: str, ended: str, schema: str
) -> None:
    url = ended if kind == "sqlite" else f"{server().url()}?schema={schema}"
    first = start("sweep", url, "--every", "1h", "--json")
    assert first.round()["elected"] is True
    second = start("sweep", url, "--every", "1s", "--json")
    waiting = second.round()
    assert (waiting["elected"], waiting["removed"]) == (False, 0)
    assert first.end(signal.SIGTERM) == ExitCode.OK
    assert second.round()["elected"] is True


def test_tiers_have_sweepers_of_their_own(start: Start, schema: str) -> None:
    """They share one election, so each resigns after its sweep."""
    url = f"{server().url()}?schema={schema}"
    for tier in ("keys", "audit"):
        done = start("sweep", url, "--every", "1h", "--tier", tier, "--json").round()
        assert (done["tier"], done["elected"]) == (tier, True)


def test_a_store_that_is_down_is_tried_again(start: Start, tmp_path: Path) -> None:
    with require(lambda: Postgres(fast=True)) as postgres:
        migrate(postgres.url())
        running = start("sweep", postgres.url(), "--every", "1s")
        assert "0 records" in running.line()
        postgres.stop("immediate")
        said = running.err.get(timeout=PATIENCE_SECONDS)
        assert said.startswith("oncekey: ")
        assert "tried again in 1s" in said
        postgres.start()
        while not running.out.empty():
            running.line()
        assert "0 records" in running.line()
        assert running.end(signal.SIGINT) == ExitCode.OK


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "0s"), "1s to 1d"),
        (("--every", "soon"), "not a duration"),
        (("--every", "10m", "--once"), "--once"),
        (("--tier", "keys"), "sweeps its tiers together"),
        (("--tier", "both"), "'both'"),
    ],
)
def test_contradicting_options_of_sweep_are_refused(
    here: Command, ended: str, options: tuple[str, ...], words: str
) -> None:
    ran = here("sweep", ended, *options)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err
