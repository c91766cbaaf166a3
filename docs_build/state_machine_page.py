"""Writes docs/explanation/state-machine.md from the transition table in core/transitions.py."""

from __future__ import annotations

import sys
from pathlib import Path

from oncekey.core import state_machine, transitions
from oncekey.core.record import State

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "state-machine.md"

MEANING = {
    State.ABSENT: "never seen, freed, expired or swept: anyone may claim",
    State.PENDING: "somebody holds the key until the lease is over",
    State.SUCCEEDED: "the outcome is stored and replayed",
    State.FAILED: "the failure is stored and replayed",
    State.UNKNOWN: "the owner died; only recovery or an operator decides",
}


def page() -> str:
    rules = [line.strip() for line in (state_machine.__doc__ or "").splitlines()]
    start = next(i for i, line in enumerate(rules) if line.startswith("1."))
    end = next(i for i, line in enumerate(rules) if line.startswith("The table of"))
    lines = [
        "# The state machine",
        "",
        "Generated from `core/transitions.py` by `make docs`; do not edit.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> absent",
    ]
    lines += [
        f"    {before.name.lower()} --> {after.name.lower()} : {event.value.replace(':', ' -')}"
        for (before, event), after in transitions.TRANSITIONS.items()
    ]
    lines += ["```", "", "| state | meaning |", "|---|---|"]
    lines += [f"| {state.name.lower()} | {meaning} |" for state, meaning in MEANING.items()]
    lines += ["", "| from | what happens | to |", "|---|---|---|"]
    lines += [
        f"| {before.name.lower()} | {event.value} | {after.name.lower()} |"
        for (before, event), after in transitions.TRANSITIONS.items()
    ]
    lines += ["", "## The rules, in words", "", *rules[start:end]]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
