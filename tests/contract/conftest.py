"""Gives each rule of a contract its rows, and leaves a part of the product to `make soak`: see
row_shares.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.planned_runs import is_left_to_soak, named_tests, rows_of_rule
from tests.support.store_table import IN_A_FOLDER


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of the row."""
    name: str = request.param
    return name


@pytest.fixture
def folder(kind: str, request: pytest.FixtureRequest) -> Path:
    """Return the folder for the files of a row."""
    path: Path = request.getfixturevalue("tmp_path") if kind.startswith(IN_A_FOLDER) else Path()
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames and metafunc.cls is not None:
        named = named_tests(metafunc.config.args)
        rows = rows_of_rule(metafunc.cls, metafunc.function.__name__, named)
        metafunc.parametrize("kind", rows, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = named_tests(config.args)
    left = {item for item in items if _is_left(item, named)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _is_left(item: pytest.Item, named: set[str]) -> bool:
    if item.path.parent != Path(__file__).parent or not isinstance(item, pytest.Function):
        return False
    if item.cls is None or not hasattr(item, "callspec") or "kind" not in item.callspec.params:
        return False
    return is_left_to_soak(item.cls, item.originalname, item.callspec.params, named)
