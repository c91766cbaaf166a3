"""The order in which a run takes its files and tests.

The files that take longest come first, so that no process is left with one of them when the others
have run out of files. `ONCEKEY_SHUFFLE=1` draws the order of the rest from the seed of the run: a
test must not need another one before it.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from tests.support.run_seed import run_seed

VARIABLE: Final = "ONCEKEY_SHUFFLE"
TESTS: Final = Path(__file__).parents[1]

# The files that take longest, the longest first. A file that is not here comes after them.
FIRST: Final = (
    "queues/test_client_faults.py",
    "queues/test_kafka_modern.py",
    "explore/test_explorer.py",
    "queues/test_kafka_kills.py",
    "crossings/test_crossings.py",
    "chaos/test_chaos_run.py",
    "contract/test_store_contract.py",
    "demo/test_demo_page.py",
    "docs/test_docs_code.py",
    "docs/test_docs_code_of_queues.py",
    "contract/test_postgres_store_contract.py",
    "queues/test_kafka_headers.py",
    "contract/test_engine_contract.py",
    "model/test_stores_against_the_model.py",
    "queues/test_rabbitmq_consumer.py",
    "stores/postgres/test_statement_races.py",
    "queues/test_kafka_lost_members.py",
    "dashboard/test_dashboard_browser.py",
    "servers/test_run_endings.py",
    "explore/test_move.py",
    "explore/test_mutants.py",
    "simulation/test_worlds.py",
    "fault/test_postgres_worker_kills.py",
    "http/test_http_servers.py",
    "fleet/test_fleet.py",
)


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort the items of a run in place."""
    if os.environ.get(VARIABLE):
        items[:] = shuffled(items, random.Random(run_seed()))
    ranks = {TESTS / file: rank for rank, file in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(FIRST)))


def shuffled(items: list[pytest.Item], chance: random.Random) -> list[pytest.Item]:
    """Return the items with their files in another order, and the tests of each file too. The
    cases of one test stay together, as the fixtures that they share want it."""
    files: defaultdict[str, defaultdict[str, list[pytest.Item]]]
    files = defaultdict(lambda: defaultdict(list))
    for item in items:
        files[str(item.path)][item.nodeid.partition("[")[0]].append(item)
    order: list[pytest.Item] = []
    for file in chance.sample(sorted(files), len(files)):
        for test in chance.sample(sorted(files[file]), len(files[file])):
            order += files[file][test]
    return order
