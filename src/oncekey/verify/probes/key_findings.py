"""What is found about keys that may be malformed, and what two answers say about their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import (
    answer,
    failed_server,
    had_effect,
    is_marked,
    is_refusal,
    is_server_failure,
    other_ids,
    same_content,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation
from oncekey.verify.verdict import Fault, Violation


@dataclass(slots=True)
class Findings:
    """What the checks of one trial have seen.

    refused   keys that were refused
    fine      keys that were accepted, and mean what they should
    unseen    keys of which nothing can be said
    """

    violations: list[Violation] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fine: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def add(self, fault: Fault, what: str, *shown: Exchange) -> None:
        """Add a violation."""
        self.violations.append(Violation(fault, what, shown))

    @property
    def count(self) -> int:
        """How many keys were judged."""
        return len(self.violations) + len(self.refused) + len(self.fine)


async def is_said(
    run: ProbeRun,
    told: Exchange,
    shown: Sequence[Exchange],
    name: str,
    findings: Findings,
    operation: Operation | None = None,
) -> bool:
    """Note a key that was not accepted; False if it was, and its meaning has to be seen.

    `operation` is what was refused, if nothing else can have had its effect.
    """
    wanted = run.profile.bad_key
    if told.is_success:
        return False
    if is_server_failure(told):
        findings.violations.append(failed_server(told, shown))
    elif not is_refusal(told):
        findings.unseen.append(f"{name}: {told.outcome()}")
    elif operation is not None and await had_effect(run, operation):
        what = f"{name}: refused with {told.outcome()}, and the request had its effect"
        findings.add(Fault.REFUSED_BUT_RUN, what, *shown, told)
    elif wanted and told.status not in wanted:
        statuses = " or ".join(map(str, sorted(wanted)))
        what = f"{name} is refused with {told.outcome()}, where the profile says {statuses}"
        findings.add(Fault.WRONG_STATUS, what, *shown, told)
    else:
        findings.refused.append(f"{name} ({told.outcome()})")
    return True


def is_one_key(run: ProbeRun, first: Exchange, other: Exchange, elsewhere: Exchange) -> bool | None:
    """True if another valid request met the first one's key: it was refused, or got its response.

    None if that cannot be told: its response is the first one's, but so is one from elsewhere.
    """
    if is_refusal(other) or is_marked(run, other):
        return True
    if not (other.is_success and same_content(first, other)):
        return False
    return None if same_content(first, elsewhere) else True


def is_same_outcome(run: ProbeRun, first: Exchange, later: Exchange) -> bool:
    """True if the later answer is the first one's outcome."""
    if not later.is_success or other_ids(first, later):
        return False
    return is_marked(run, later) or same_content(first, later)


async def send_key(
    run: ProbeRun, operation: Operation, lines: Sequence[bytes], note: str
) -> Exchange:
    """Send an operation's request with exactly these lines of the key header."""
    request = operation.request().with_lines(run.target.key_header, lines)
    return await answer(run, request, note)
