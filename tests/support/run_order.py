"""The order in which a run takes its files and tests.

The files that take longest come first, so that no process is left with one of them when the others
have run out of files. `ONCEKEY_SHUFFLE=1` draws the order of the rest from the seed of the run: a
test must not need another one before it.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Final

import pytest
from tests.support.run_seed import run_seed

VARIABLE: Final = "ONCEKEY_SHUFFLE"

# Folders, in the order of how long their longest file takes.
FIRST: Final = (
    "contract",
    "explore",
    "fleet",
    "hammer",
    "demo",
    "model",
    "queues",
    "fault",
    "docs",
    "http",
)


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort the items of a run in place."""
    if os.environ.get(VARIABLE):
        items[:] = shuffled(items, random.Random(run_seed()))
    ranks = {folder: rank for rank, folder in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(FIRST)))


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
