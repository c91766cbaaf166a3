"""`sweep --every`: one elected sweeper per store, until a signal, also while the store is down."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.command_runner import Start
from tests.cli.conftest import Command
from tests.support.postgres_stores import server
from tests.support.servers import Postgres, require

from oncekey.cli.main import main
from oncekey.cli.output import ExitCode
from oncekey.cli.signals import StopRequest
from oncekey.stores.postgres import migrate

PATIENCE_SECONDS = 240
HOUR_SECONDS = 3_600


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


def test_sweep_every_prints_a_json_document_per_sweep(
    here: Command, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while it waits for its third sweep; it waits after batches too."""
    waits: list[float] = []

    def wait(stop: StopRequest, seconds: float) -> None:
        waits.append(seconds)
        if waits.count(HOUR_SECONDS) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StopRequest, "wait", wait)
    ran = here("sweep", ended, "--every", "1h", "--limit", "2", "--json")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["removed"], first["batches"]) == (5, 3)
    assert (first["tier"], first["elected"]) == ("all", True)
    assert second["removed"] == 0


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


def test_tiers_have_sweepers_of_their_own(
    here: Command, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one election, so each resigns after its sweep: the second one begins and ends
    while the first one waits for its next sweep."""
    url = f"{server().url()}?schema={schema}"
    others = iter(["audit"])

    def sweep(tier: str) -> tuple[str, ...]:
        return ("sweep", url, "--every", "1h", "--tier", tier, "--json")

    def wait(stop: StopRequest, seconds: float) -> None:
        for tier in others:
            assert main(sweep(tier)) == ExitCode.OK
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(StopRequest, "wait", wait)
    ran = here(*sweep("keys"))
    assert ran.code == ExitCode.OK
    done = [json.loads(line) for line in ran.out.splitlines()]
    assert [(one["tier"], one["elected"]) for one in done] == [("keys", True), ("audit", True)]


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


def test_a_store_that_is_down_at_the_start_is_tried_again(start: Start) -> None:
    with require(lambda: Postgres(fast=True)) as postgres:
        migrate(postgres.url())
        postgres.stop("immediate")
        running = start("sweep", postgres.url(), "--every", "1s")
        said = running.err.get(timeout=PATIENCE_SECONDS)
        assert "tried again in 1s" in said
        ended = start("sweep", postgres.url(), "--every", "1h")
        assert "tried again in 1h" in ended.err.get(timeout=PATIENCE_SECONDS)
        assert ended.end(signal.SIGTERM) == ExitCode.OK
        postgres.start()
        assert "0 records" in running.line()
        assert running.end(signal.SIGINT) == ExitCode.OK


def test_a_database_that_has_no_tables_when_it_comes_back_is_refused(start: Start) -> None:
    """A sweeper makes none, also if it has waited for the server."""
    with require(lambda: Postgres(fast=True)) as postgres:
        postgres.stop("immediate")
        running = start("sweep", postgres.url(), "--every", "1s")
        assert "tried again in 1s" in running.err.get(timeout=PATIENCE_SECONDS)
        postgres.start()
        assert running.wait() == ExitCode.USAGE
        assert running.out.empty()


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
