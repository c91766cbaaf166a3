"""What a test says when it needs a server: have it, or skip loudly, or fail where all must run.

Owns that one decision. It must not know which servers there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from tests.support.servers.processes import ServerMissing

Server = TypeVar("Server")


def require(make: Callable[[], Server]) -> Server:
    """What `make` gives; if its server is missing, skip by name, and fail under `CI=true`."""
    import pytest

    try:
        return make()
    except ServerMissing as missing:
        why = f"{missing.name.upper()} IS MISSING: {missing.how_to_get}"
        if os.environ.get("CI") == "true":
            raise pytest.fail.Exception(why, pytrace=False) from None
        raise pytest.skip.Exception(why) from None
