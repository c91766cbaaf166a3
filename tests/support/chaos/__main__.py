"""`python -m tests.support.chaos`: runs chaos, checks its history, and says what was violated."""
from __future__ import annotations
import argparse, sys
from pathlib import Path
from collections import Counter
from tests.support.chaos.chaos_history import write_events, read_events
from tests.support.chaos.chaos_plan import ChaosOptions, make_plan
from tests.support.chaos.chaos_run import run
from tests.support.chaos.small_disk import enter_namespace
from tests.support.chaos.operation_history import read_history
from tests.support.chaos.invariant_rules import check
from tests.support.chaos.violation_story import story

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=1)
p.add_argument("--minutes", type=float, default=0.5)
p.add_argument("--faults", type=int, default=10)
p.add_argument("--rate", type=float, default=30)
p.add_argument("--durability", choices=["on","off"], default="on")
p.add_argument("--kinds", default="")
p.add_argument("--replay", default="")
o = p.parse_args()
if o.replay:
    events = list(read_events(Path(o.replay)))
else:
    enter_namespace("tests.support.chaos", sys.argv[1:])
    plan = make_plan(ChaosOptions(o.seed, o.minutes*60, o.faults, o.rate, durable=o.durability=="on", kinds=tuple(filter(None,o.kinds.split(",")))))
    events = run(plan)
    Path("build/chaos").mkdir(parents=True, exist_ok=True)
    write_events(Path(f"build/chaos/history-{o.seed}.jsonl"), events)
print(Counter(e["kind"] for e in events))
print(Counter(e["what"] for e in events if e["kind"]=="event"))
print(Counter((e["variant"],e["status"],e["code"]) for e in events if e["kind"]=="reply"))
h=read_history(events)
v=check(h)
print(len(h.operations), "operations", Counter(x.invariant for x in v), Counter((o.level,(o.record or {}).get("state")) for o in h.operations.values()))
for x in v[:3]: print(story(x,h)); print()
