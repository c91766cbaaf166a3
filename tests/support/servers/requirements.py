"""`require`: a test that needs a server gets it, is skipped by name, or fails under `CI=true`.

This module owns that one decision and must not know which servers there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from tests.support.servers.processes import ServerMissing

Server = TypeVar("Server")


def require(make: Callable[[], Server]) -> Server:
    """Return what `make` returns. If its server is missing, skip the test, or fail it in CI."""
    import pytest

    try:
        return make()
    except ServerMissing as missing:
        reason = f"{missing.name.upper()} IS MISSING: {missing.how_to_get}"
        if os.environ.get("CI") == "true":
            raise pytest.fail.Exception(reason, pytrace=False) from None
        raise pytest.skip.Exception(reason) from None
