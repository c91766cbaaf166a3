"""`oncekey exporter`: a real process, scraped over HTTP, until a signal."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from uuid import uuid4

import pytest
import yaml
from tests.cli.command_runner import PATIENCE_SECONDS, Start
from tests.cli.conftest import Command
from tests.support.postgres_stores import server
from tests.support.servers import Postgres, require

from oncekey import Once
from oncekey.cli.output import ExitCode
from oncekey.metrics.event_counts import store_name
from oncekey.stores.postgres import migrate


@pytest.fixture
def schema_url() -> Iterator[str]:
    name = f"exporter_{uuid4().hex[:12]}"
    url = f"{server().url()}?schema={name}"
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: 1)
    yield url
    server().execute(f"DROP SCHEMA {name} CASCADE")


def test_exporter_once_prints_the_metrics_of_sqlite(here: Command, charged: str) -> None:
    done = here("exporter", charged, "--once")
    assert done.code == ExitCode.OK
    assert 'oncekey_store_up{store="sqlite"} 1.0' in done.out
    assert 'oncekey_store_rows{store="sqlite"} 3.0' in done.out
    assert 'oncekey_store_pending_age_seconds{quantile="0.95",store="sqlite"} 0.0' in done.out


def test_exporter_and_app_give_a_store_the_same_label(here: Command, schema_url: str) -> None:
    """Also for a scheme that is another name of the same store."""
    for url in (schema_url, schema_url.replace("postgresql://", "postgres://", 1)):
        with Once(url) as once:
            label = store_name(once._store)
        assert f'oncekey_store_up{{store="{label}"}} 1.0' in here("exporter", url, "--once").out


def test_exporter_serves_postgresql_until_a_signal(start: Start, schema_url: str) -> None:
    running = start("exporter", schema_url, "--port", "0", "--name", "shop")
    line = running.line()
    found = re.search(r"(http://127\.0\.0\.1:\d+/metrics)", line)
    assert found, line
    with urllib.request.urlopen(found[1], timeout=90) as response:
        text = response.read().decode()
    assert 'oncekey_store_up{store="shop"} 1.0' in text
    assert 'oncekey_store_unknown{store="shop"} 0.0' in text
    assert running.end(signal.SIGTERM) == ExitCode.OK


def test_exporter_serves_a_store_that_is_down_at_the_start(start: Start) -> None:
    """`oncekey_store_up` is 0 from then on, and 1 when the store has come."""
    with require(lambda: Postgres(fast=True)) as postgres:
        migrate(postgres.url())
        postgres.stop("immediate")
        running = start("exporter", postgres.url(), "--port", "0", "--every", "1s", "--json")
        first = running.round()
        assert (first["up"], first["metrics"]) == (False, {})
        assert "it is read again in 1s" in running.err.get(timeout=PATIENCE_SECONDS)
        with urllib.request.urlopen(f"http://127.0.0.1:{first['port']}/metrics", timeout=90) as got:
            assert "oncekey_store_up" in (text := got.read().decode())
        assert re.search(r"^oncekey_store_up\{.*\} 0.0$", text, re.M)
        postgres.start()
        while not (document := running.round())["up"]:
            pass
        assert document["metrics"]["unknown"] == 0
        assert running.end(signal.SIGTERM) == ExitCode.OK


def test_exporter_json_prints_one_document_per_reading(start: Start, charged: str) -> None:
    running = start("exporter", charged, "--port", "0", "--every", "1s", "--json")
    for _ in range(2):
        document = running.round()
        assert document["up"] is True
        assert document["metrics"]["rows"] == 3
        assert document["metrics"]["pending_age_seconds_p95"] == 0
    assert running.end(signal.SIGINT) == ExitCode.OK


def test_exporter_prints_the_alert_rules_and_the_dashboard(here: Command) -> None:
    assert yaml.safe_load(here("exporter", "--alerts").out)["groups"]
    assert json.loads(here("exporter", "--grafana").out)["title"] == "oncekey"
    assert here("exporter", "--grafana", "--alerts").code == ExitCode.USAGE


def test_exporter_without_a_store_is_wrong_usage(here: Command, url: str) -> None:
    assert here("exporter").code == ExitCode.USAGE
    assert here("exporter", url, "--once").code == ExitCode.USAGE
    assert here("exporter", "memory://", "--once").code == ExitCode.USAGE


def test_a_folder_of_workers_that_is_not_there_is_refused(here: Command, charged: str) -> None:
    refused = here("exporter", charged, "--once", "--workers", "/no/such/folder")
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "no folder /no/such/folder" in refused.err
