"""`python -m bench [memory] [sqlite]`: run, print the ratios, write bench/results/bench.json."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import memory, sqlite
from bench.figures import save, show

SUITES = {"memory": memory.run, "sqlite": sqlite.run}


def main() -> int:
    chosen = sys.argv[1:] or list(SUITES)
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; choose from {', '.join(SUITES)}", file=sys.stderr)
        return 2
    reports = []
    for name in chosen:
        print(f"{name} ", end="", file=sys.stderr)
        reports += SUITES[name]()
    show(reports)
    print(f"written to {save(reports, Path(__file__).parent / 'results')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
