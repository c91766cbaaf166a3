"""Leaves a part of each contract's product to `make soak`, see row_shares.py, and leaves out the
rules that a row does not promise."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from tests.contract.row_shares import left_to_soak
from tests.contract.store_contract_rows import is_no_rule_of

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    contracts = [item for item in items if item.path.parent == Path(__file__).parent]
    left: set[pytest.Item] = set()
    for _, tests in groupby(contracts, key=lambda item: item.path):
        left |= _left_of_module([item for item in tests if isinstance(item, pytest.Function)])
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _left_of_module(tests: list[pytest.Function]) -> set[pytest.Item]:
    product: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    left: set[pytest.Item] = set()
    for test in tests:
        row = test.callspec.params.get("kind") if hasattr(test, "callspec") else None
        if row is None:
            continue
        if is_no_rule_of(str(row), test.originalname):
            left.add(test)
        else:
            product[test.originalname][str(row)].append(test)
    if not product or SOAK:
        return left
    module = tests[0].module
    shares = [getattr(module, name, ()) for name in ("ONE_CASE", "TWINS", "HALVES")]
    return left | left_to_soak(product, *shares)
