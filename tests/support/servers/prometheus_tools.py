"""`promtool` of Prometheus: checks rules, and evaluates them on series that a test gives.

This module finds the program, on PATH or in Debian's package, and runs it. It must not know the
rules.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.servers import debian_packages

_SECONDS = 60


@cache
def find_promtool() -> Path:
    """Return the program; raises ServerMissing if it cannot be had."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed)
    return debian_packages.fetch("prometheus") / "usr" / "bin" / "promtool"


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Run the program, and return its exit code and all it said."""
    done = subprocess.run(
        [find_promtool(), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    return done.returncode, done.stdout + done.stderr
