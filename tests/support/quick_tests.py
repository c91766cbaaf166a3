"""What `make quick` runs: the tests that need no server, no network and no minute of their own.

`ONCEKEY_QUICK=1` chooses them. A server that is started all the same fails its test, so a test that
begins to need one is noticed here.
"""

from __future__ import annotations

import os
import re
from typing import Final

import pytest

VARIABLE: Final = "ONCEKEY_QUICK"
FOLDERS: Final = ("core", "engine", "contract", "http", "client", "testing")

# Helpers that start servers or processes: a test file that imports from one of them is not quick.
_STARTERS: Final = re.compile(
    r"tests\.(support\.(servers|postgres|redis|etcd|kafka|rabbitmq)"
    r"|http\.(app_server|wsgi_server|gated_request))"
)
# Stores that are on a server, as the ids of cases name them.
_ON_A_SERVER: Final = re.compile(r"\b(postgres|redis|redis8|valkey|etcd|cluster|sentinel|pooler)\b")
# The contract suites import every helper, and their cases say which store they are about.
_BY_CASE: Final = "contract"


def is_asked_for() -> bool:
    return bool(os.environ.get(VARIABLE))


def is_quick(item: pytest.Item) -> bool:
    """True if a test is in the quick part."""
    if item.path.parent.name not in FOLDERS or item.get_closest_marker("seeded"):
        return False
    if _ON_A_SERVER.search(item.nodeid.partition("[")[2]):
        return False
    return item.path.parent.name == _BY_CASE or not _starts_servers(item)


def _starts_servers(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    names = (getattr(each, "__module__", None) for each in vars(module).values())
    imported = {name for name in names if isinstance(name, str)}
    imported |= {each.__name__ for each in vars(module).values() if isinstance(each, type(re))}
    return any(map(_STARTERS.match, imported))
