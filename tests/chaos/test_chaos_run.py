"""A short chaos run with a few faults: nothing is violated, and the faults have really happened.

`make chaos` is the long form. The run is a process of its own, which enters a namespace where it
may mount its disks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.servers import Postgres, RedisServer, Uvicorn, require

ROOT = Path(__file__).parents[2]
FAULTS = [
    "worker killed",
    "store replies lost",
    "responses cut short",
    "database killed",
    "standby promoted",
    "disk full",
]
SECONDS = 240


@pytest.mark.seeded
@pytest.mark.timeout(SECONDS + 30)
def test_a_short_run_violates_nothing(tmp_path: Path, seed: int) -> None:
    require(Postgres)
    require(RedisServer)
    require(lambda: Uvicorn("x:y"))
    size = ["--minutes=0.1", f"--faults={len(FAULTS)}", "--rate=12", "--workers=2", "--consumers=1"]
    files = [f"--history={tmp_path / 'run.jsonl'}", f"--html={tmp_path / 'run.html'}"]
    options = [*size, *files, "--kinds", *FAULTS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.chaos", "--json", f"--seed={seed}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout, f"seed {seed}: the run itself failed\n{done.stderr}"
    found = json.loads(done.stdout)
    assert found["violations"] == 0, f"seed {seed}\n{found['found'][0]['story']}"
    # The plan has each of these, whatever the seed.
    assert found["faults by kind"] == dict.fromkeys(FAULTS, 1)
    assert found["operations"] >= 70
    assert set(found["levels"]) == {
        *("transactional", "fenced", "once", "recovered", "queue", "late"),
    }
    assert f"seed {seed}" in (tmp_path / "run.html").read_text(encoding="utf-8")
