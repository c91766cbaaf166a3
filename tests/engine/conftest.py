"""Lets plain `pytest` find `tests.core.sample_records`, as `python -m pytest` does by itself."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

# A loaded machine is no bug in the code under test.
settings.register_profile("core", deadline=None)
settings.load_profile("core")
