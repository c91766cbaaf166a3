"""`python -m tests.support.hammer`: prints counts and violations as JSON; exits with 1 if any."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from tests.support.hammer.hammer_run import HammerPlan, run_here
from tests.support.hammer.saboteurs import SABOTEURS


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.hammer", description=__doc__)
    parser.add_argument("--plan", help="all options as JSON")
    parser.add_argument("--store", help="a store's URL, e.g. sqlite:////tmp/keys.db")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sabotage", choices=sorted(SABOTEURS), default="")
    options = parser.parse_args()
    if options.plan:
        plan = HammerPlan(**json.loads(options.plan))
    elif options.store:
        plan = HammerPlan(
            options.store,
            seconds=options.seconds,
            processes=options.processes,
            sabotage=options.sabotage,
            seed=options.seed,
        )
    else:
        parser.error("give --store or --plan")
    report = run_here(plan)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
