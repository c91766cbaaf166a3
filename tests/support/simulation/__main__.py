"""`python -m tests.support.simulation`: run many worlds, or tell the story of one.

--seeds 100000        run this many worlds
--first 5000          begin with this seed
--seed 17             run one world
-v                    tell its story also if nothing breaks
--scale 5             five times as many callers, faults and processes
--forgetful           the store forgets acknowledged writes when it crashes: worlds must break
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TextIO

from tests.support.explorer.code_under_test import REAL
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.plan_text import describe_plan
from tests.support.simulation.seed_search import broken_by, explain, told

PROGRESS_SECONDS = 5.0


def main() -> int:
    """Exit code 0 if no world breaks an invariant, else 1."""
    options = _options()
    drawn = partial(draw, durable=not options.forgetful, scale=options.scale)
    if options.verbose and options.seed is not None:
        plan = drawn(options.seed)
        _, story = told(plan)
        _write(sys.stdout, "\n".join((*describe_plan(plan), "", *story)) + "\n")
    first = options.first if options.seed is None else options.seed
    count = options.seeds if options.seed is None else 1
    began = told_at = time.monotonic()
    for done, seed in enumerate(range(first, first + count)):
        plan = drawn(seed)
        broken = broken_by(plan)
        if broken is not None:
            _write(sys.stdout, f"{explain(plan, broken, REAL)}\n")
            again = f"python -m tests.support.simulation --seed {seed} -v"
            again += f" --scale {options.scale}" if options.scale > 1 else ""
            again += " --forgetful" if options.forgetful else ""
            _write(sys.stdout, f"again: {again}\n")
            return 1
        now = time.monotonic()
        if now - told_at >= PROGRESS_SECONDS:
            told_at = now
            pace = (done + 1) / (now - began)
            _write(sys.stderr, f"{done + 1:>10,} of {count:,} worlds, {pace:,.0f} a second\n")
    seconds = time.monotonic() - began
    _write(sys.stdout, f"{count:,} worlds from seed {first}, {seconds:.1f} s, 0 violations\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation")
    parser.add_argument("--seeds", type=int, default=100_000, help="how many worlds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run the world of this seed only")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell the story of --seed")
    parser.add_argument("--forgetful", action="store_true", help="the store is not durable")
    parser.add_argument("--scale", type=int, default=1, help="worlds with more of everything")
    return parser.parse_args()


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
