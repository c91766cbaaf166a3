"""`make verify-demo`: the whole verification of the demo, 20 times. Nothing may be violated."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from tests.support.verified_apis import served_demo

from oncekey.verify.probes import PROBES
from oncekey.verify.profile import PROFILES
from oncekey.verify.verdict import Status
from oncekey.verify.verification import Verification, verify

RUNS = 20
SECONDS_MAX = 120.0


async def run(profile: str) -> Verification:
    async with served_demo() as target:
        return await verify(target, PROFILES[profile], PROBES)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    alarms, longest = 0, 0.0
    for number in range(1, runs + 1):
        profile = ("ietf", "oncekey")[number % 2]
        done = asyncio.run(run(profile))
        longest = max(longest, done.seconds)
        alarms += done.is_violated
        counts = Counter(verdict.status.value for verdict in done.verdicts)
        shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        print(
            f"run {number:2} {profile:8} {done.requests:5} requests {done.seconds:6.1f} s {shown}"
        )
        for verdict in done.verdicts:
            if verdict.status is not Status.HOLDS:
                print(f"    {verdict.guarantee.slug}: {verdict.status.value}: {verdict.summary}")
        sys.stdout.flush()
    print(f"{alarms} false alarms in {runs} runs; the longest took {longest:.1f} s")
    return 0 if not alarms and longest < SECONDS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
