"""`python -m tests.support.chaos`: runs chaos, checks its history, and says what was violated.

It exits with 1 if an invariant was violated, and then prints the seed and the story of the first
violation of each invariant.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.chaos.chaos_history import Event, read_events, write_events
from tests.support.chaos.chaos_plan import KINDS, ChaosOptions, make_plan
from tests.support.chaos.chaos_run import run
from tests.support.chaos.invariant_rules import Violation, check
from tests.support.chaos.operation_history import RunHistory, read_history
from tests.support.chaos.run_summary import as_text, explain, summarize
from tests.support.chaos.run_timeline import page
from tests.support.chaos.small_disk import enter_namespace
from tests.support.chaos.violation_story import stories, story

MODULE = "tests.support.chaos"
FAULTS_PER_MINUTE = 22
SEEDS = 10**6


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    made.add_argument("--seed", type=int, help="decides operations and faults; default: random")
    made.add_argument("--minutes", type=float, default=10.0, help="for how long faults happen")
    made.add_argument("--faults", type=int, help=f"default: {FAULTS_PER_MINUTE} a minute")
    made.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=[], metavar="KIND")
    made.add_argument("--rate", type=float, default=38.0, help="operations per second")
    made.add_argument("--workers", type=int, default=3, help="processes of the API")
    made.add_argument("--consumers", type=int, default=2, help="processes that consume the queue")
    made.add_argument("--durability", choices=("on", "off"), default="on")
    made.add_argument("--history", type=Path, help="default: build/chaos/SEED.jsonl")
    made.add_argument("--replay", type=Path, metavar="FILE", help="check a recorded history again")
    made.add_argument("--html", type=Path, metavar="FILE", help="write the timeline of the run")
    made.add_argument("--json", action="store_true", help="print figures and violations as JSON")
    made.add_argument("--plan", action="store_true", help="print the plan as JSON, and do not run")
    return made


def main(arguments: Sequence[str]) -> int:
    given = parser().parse_args(arguments)
    if given.replay is not None:
        path = given.replay
        if not path.is_file():
            parser().error(f"there is no history {path}")
        events = list(read_events(path))
    else:
        if given.seed is None:
            # It is part of the command line from here on, since the program starts itself again.
            arguments = [*arguments, f"--seed={random.randrange(SEEDS)}"]
            given = parser().parse_args(arguments)
        plan = make_plan(_options(given))
        if given.plan:
            sys.stdout.write(json.dumps(plan.as_json(), indent=1) + "\n")
            return 0
        enter_namespace(MODULE, arguments)
        path = given.history or Path("build/chaos") / f"{given.seed}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        events = run(plan, path.with_suffix(".log"))
        write_events(path, events)
    return _report(events, given, path)


def _options(given: argparse.Namespace) -> ChaosOptions:
    faults = given.faults
    return ChaosOptions(
        seed=given.seed,
        seconds=given.minutes * 60,
        faults=round(given.minutes * FAULTS_PER_MINUTE) if faults is None else faults,
        rate=given.rate,
        workers=given.workers,
        consumers=given.consumers,
        durable=given.durability == "on",
        kinds=tuple(given.kinds),
    )


def _report(events: list[Event], given: argparse.Namespace, path: Path) -> int:
    history = read_history(events)
    violations = check(history)
    summary = summarize(history, violations)
    if given.html is not None:
        given.html.write_text(page(history, violations), encoding="utf-8")
    if given.json:
        told = [{"story": story(one, history), **_as_json(one)} for one in violations]
        sys.stdout.write(json.dumps({**summary, "found": told}, indent=1) + "\n")
    else:
        files = [f"history: {path}"] + ([f"timeline: {given.html}"] if given.html else [])
        lines = [as_text(summary), *_stories(history, violations), *files]
        sys.stdout.write("\n".join(lines) + "\n")
    return 1 if violations else 0


def _as_json(violation: Violation) -> dict[str, object]:
    return {
        "invariant": violation.invariant,
        "id": violation.id,
        "text": violation.text,
        "at": violation.at,
    }


def _stories(history: RunHistory, violations: list[Violation]) -> list[str]:
    if not violations:
        return []
    again = f"the same plan again: --seed {history.options.seed}, with the same options"
    told = [f"\n{text}" for text in stories(violations, history)]
    return [explain(history, violations), again, *told]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
