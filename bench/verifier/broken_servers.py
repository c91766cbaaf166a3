"""`make verify-broken`: the whole verification of each server of examples/broken.

Each server runs in a process of its own, as `python -m examples.broken NAME` starts it. The exit
code is 1 if a fault was not named, if any other was, or if a verification took too long.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.broken.catalog import FAULTS, SERVERS
from tests.support.verified_apis import origin_of, payments_target

from oncekey.verify.probes import PROBES
from oncekey.verify.profile import PROFILE_DEFAULT
from oncekey.verify.raw_connection import Origin
from oncekey.verify.verdict import Status
from oncekey.verify.verification import Verification, verify

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120.0


@contextmanager
def served(name: str) -> Iterator[Origin]:
    """Serves one in a process of its own, and yields where."""
    command = [sys.executable, "-m", "examples.broken", name, "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield origin_of(process.stdout.readline().split()[-1])
        finally:
            process.terminate()


def main() -> int:
    named, wrong = 0, 0
    print(f"{'server':26} {'faults named':60} {'seconds':>8} {'requests':>9}")
    for name in SERVERS:
        with served(name) as origin:
            done = asyncio.run(verify(payments_target(origin), PROFILE_DEFAULT, PROBES))
        found = faults_of(done)
        is_wrong = bool(found - {name}) or done.seconds > SECONDS_MAX
        named += name in found
        wrong += is_wrong
        print(
            f"{name:26} {', '.join(sorted(found)) or '-':60} "
            f"{done.seconds:8.1f} {done.requests:9}" + (" UNEXPECTED" if is_wrong else ""),
            flush=True,
        )
        for verdict in done.verdicts:
            if verdict.status is Status.VIOLATED:
                print(f"    {verdict.guarantee.slug}: {verdict.summary}")
    print(f"{named} of {len(FAULTS)} faults named, {wrong} runs with something unexpected")
    return 0 if named == len(FAULTS) and not wrong else 1


def faults_of(done: Verification) -> set[str]:
    return {one.fault.slug for verdict in done.verdicts for one in verdict.violations}


if __name__ == "__main__":
    sys.exit(main())
