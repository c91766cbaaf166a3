"""`python -m bench [suite ...]`: run, print the ratios, write them to bench/results/.

Without a name, the suites that need no server run. `postgres` starts its own and takes about five
minutes, `postgres-growth` fills a table with ten million rows first, `postgres-processes` runs 1, 2
and 4 processes for two minutes, `dashboard` asks for the dashboard's pages on ten million rows,
`metrics` compares first runs with metrics on and off, `queues` compares consumers with bare loops,
`stores` has Valkey, its Cluster and etcd beside raw limits, peers and each other; all of them draw
a plot as well. Two suites
measure no time and print Markdown: `walks` counts the files that an operation goes through,
`instructions` the processor's instructions (`instructions=WORD` only those with that word).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.figures import Report, markdown, save, show

RESULTS = Path(__file__).parent / "results"
EMBEDDED = {"memory": "bench.memory", "sqlite": "bench.sqlite"}
SERVERS = {
    "postgres": "bench.postgres.suite",
    "postgres-growth": "bench.postgres.growth",
    "postgres-processes": "bench.postgres.processes",
    "http": "bench.http.suite",
    "dashboard": "bench.dashboard",
    "metrics": "bench.metrics",
    "stores": "bench.stores.suite",
    "queues": "bench.queues.suite",
}
COUNTS = {"walks": "bench.walks", "instructions": "bench.instructions.suite"}


def main() -> int:
    chosen = sys.argv[1:] or list(EMBEDDED)
    known = {**EMBEDDED, **SERVERS, **COUNTS}
    unknown = [name for name in chosen if name.partition("=")[0] not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    embedded: list[Report] = []
    for choice in chosen:
        name, _, word = choice.partition("=")
        if name in COUNTS:
            importlib.import_module(known[name]).show([word] if word else [])
            continue
        print(f"{name} ", end="" if name in EMBEDDED else "\n", file=sys.stderr, flush=True)
        # Imported only now: a suite's peers start threads of their own.
        reports: list[Report] = importlib.import_module(known[name]).run()
        if name in EMBEDDED:
            embedded += reports
        else:
            _server_results(name, reports)
    if embedded:
        show(embedded)
        print(f"written to {save(embedded, RESULTS)}")
    return 0


def _server_results(name: str, reports: list[Report]) -> None:
    from bench.plot import draw

    show(reports)
    written = save(reports, RESULTS, name)
    written.with_suffix(".md").write_text(markdown(reports))
    print(f"written to {written} and {draw(reports, written.with_suffix('.png'))}")


if __name__ == "__main__":
    sys.exit(main())
