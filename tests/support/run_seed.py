"""The seed of a run: from it comes everything that a test draws by lot.

`make test` always has the same seed, so that it tries the same things every time. `make soak` and
`make test-repeat` take another one each time; the first line of the run tells it, and
`ONCEKEY_SEED` sets it. A seed repeats what was drawn, not how processes were interleaved.
"""

from __future__ import annotations

import os
import random
import zlib
from typing import Final

VARIABLE: Final = "ONCEKEY_SEED"
USUAL: Final = 1


def run_seed() -> int:
    """Return the seed of this run. Its child processes inherit it."""
    text = os.environ.get(VARIABLE)
    if text is None:
        is_soak = bool(os.environ.get("ONCEKEY_SOAK"))
        seed = random.SystemRandom().randrange(10**6) if is_soak else USUAL
        text = os.environ[VARIABLE] = str(seed)
    return int(text)


def seed_of(node_id: str) -> int:
    """Return the seed of one test: another one for each test, the same one in each run."""
    return zlib.crc32(f"{run_seed()} {node_id}".encode())
