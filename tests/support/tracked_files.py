"""The files of the project, as git knows them, for the tests that read all of them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tracked() -> tuple[str, ...]:
    """Every file git knows that still exists."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = [name for name in done.stdout.split("\0") if name]
    return tuple(name for name in names if (ROOT / name).is_file())
