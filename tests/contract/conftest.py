"""Leaves a part of each contract's product to `make soak`, see row_shares.py."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from tests.contract.row_shares import left_to_soak

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    contracts = [item for item in items if item.path.parent == Path(__file__).parent]
    left: set[pytest.Item] = set()
    for _, tests in groupby(contracts, key=lambda item: item.path):
        left |= _left_of_module([item for item in tests if isinstance(item, pytest.Function)])
    if left and not SOAK:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _left_of_module(tests: list[pytest.Function]) -> set[pytest.Item]:
    product: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        row = test.callspec.params.get("kind") if hasattr(test, "callspec") else None
        if row is not None:
            product[test.originalname][str(row)].append(test)
    if not product:
        return set()
    module = tests[0].module
    return left_to_soak(product, getattr(module, "ONE_CASE", ()), getattr(module, "TWINS", ()))
