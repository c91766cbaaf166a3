"""Counters of four Gunicorn workers add up; the store's gauges come from the exporter alone."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.servers import Gunicorn, require
from tests.support.servers.processes import wait_until

from oncekey.metrics.exporter import StoreCollector, make_registry, text_of
from oncekey.stores.sqlite import SQLiteStore

WORKERS = 4
KEYS = 24
ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Gunicorn]:
    counts = tmp_path / "counts"
    counts.mkdir()
    env = {
        "COUNTED_STORE": f"sqlite:///{tmp_path / 'keys.db'}",
        "PROMETHEUS_MULTIPROC_DIR": str(counts),
    }
    server = require(
        lambda: Gunicorn(
            "tests.metrics.counted_app:app",
            cwd=ROOT,
            env=env,
            threads=2,
            options=[f"--workers={WORKERS}"],
        )
    )
    with server:
        yield server


def charge(server: Gunicorn, number: int) -> int:
    request = urllib.request.Request(f"{server.url}/charges", method="POST", data=b"")
    request.add_header("Idempotency-Key", f'"order-{number}"')
    with urllib.request.urlopen(request, timeout=90) as response:
        return int(json.load(response)["pid"])


def charge_until_several_workers_served(server: Gunicorn) -> int:
    """Send keys, each twice, until more than one worker has served some; how many they were."""
    pids: set[int] = set()
    rounds = itertools.count()

    def served_by_several() -> bool:
        first = next(rounds) * KEYS
        numbers = [*range(first, first + KEYS)]
        pids.update(pool.map(lambda number: charge(server, number), numbers))
        list(pool.map(lambda number: charge(server, number), numbers))
        return len(pids) > 1

    with ThreadPoolExecutor(8) as pool:
        wait_until(served_by_several, "more than one worker serves")
    return next(rounds) * KEYS


def outcomes(text: str) -> dict[str, float]:
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "oncekey_outcomes_total":
                assert sample.labels["surface"] == "http"
                assert sample.labels["route"] == "POST /charges"
                outcome = sample.labels["outcome"]
                counts[outcome] = counts.get(outcome, 0) + sample.value
    return counts


def test_the_counters_of_all_workers_add_up_and_gauges_are_the_exporters(
    served: Gunicorn, tmp_path: Path
) -> None:
    keys = charge_until_several_workers_served(served)

    def scrape() -> str:
        with urllib.request.urlopen(f"{served.url}/metrics", timeout=90) as response:
            text: str = response.read().decode()
        return text

    expected = {"miss": keys, "finished": keys, "hit": keys}
    wait_until(lambda: outcomes(scrape()) == expected, "all workers have written their counts")
    assert "oncekey_store_" not in scrape()
    store = SQLiteStore(tmp_path / "keys.db")
    collector = StoreCollector(store, "sqlite")
    collector.read()
    text = text_of(make_registry(collector, str(tmp_path / "counts")))
    store.close()
    assert outcomes(text) == expected
    assert f'oncekey_store_rows{{store="sqlite"}} {float(keys)}' in text
