"""Checks of a key that comes in more than one header line."""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.key_findings import Findings, is_said, is_same_outcome, send_key
from oncekey.verify.probes.known_outcome import (
    answer,
    is_marked,
    later_answer,
    other_ids,
    same_ids,
)
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import Operation
from oncekey.verify.verdict import Fault


async def check_two_lines(run: ProbeRun, findings: Findings) -> None:
    """Two keys in one request are ambiguous; if it is run, one of them, or both, is its key."""
    operation, second = await run.operation(), await run.operation()
    header = run.target.key_header
    keys = [run.target.key_text(each.key).encode("ascii") for each in (operation, second)]
    both = operation.request().with_lines(header, keys)
    first = await answer(run, both, "two lines with different keys")
    if await is_said(run, first, (), "two lines", findings, operation):
        return
    shown = [first]
    for name, key in zip(("first", "second"), keys, strict=True):
        single = both.with_lines(header, [key])
        told, ran = await _alone(run, operation, first, single, f"only the {name} of both keys")
        shown.append(told)
        if is_same_outcome(run, first, told) and not ran:
            _accept_one_of_two(run, findings, f"its {name} line is its key", shown)
            return
        if not ran:
            findings.unseen.append("which of two lines is the key, as nothing tells runs apart")
            return
    again = await answer(run, both, "two lines with different keys, again")
    shown.append(again)
    if is_same_outcome(run, first, again):
        what = (
            f"a request with two keys was run ({first.outcome()}) under a third one: each of the "
            f"two alone was run anew, and only both together find the outcome"
        )
        findings.add(Fault.HEADER_LINES_JOINED, what, *shown)
    else:
        what = (
            f"a request with two keys was run ({first.outcome()}), and no retry finds its outcome"
        )
        findings.add(Fault.KEY_ACCEPTED, what, *shown)


async def check_line_twice(run: ProbeRun, findings: Findings) -> None:
    """The same line twice, as a proxy may send it, is refused, or is the key that it says."""
    operation = await run.operation()
    key = run.target.key_text(operation.key).encode("ascii")
    first = await send_key(run, operation, [key, key], "the same line twice")
    if await is_said(run, first, (), "the same line twice", findings, operation):
        return
    told, ran = await _alone(run, operation, first, operation.request(), "the same line once")
    if ran:
        what = (
            f"a key that came in two equal lines was accepted ({first.outcome()}), and is another "
            f"one than the same key in one line, which was run again ({told.outcome()})"
        )
        findings.add(Fault.HEADER_LINES_JOINED, what, first, told)
    else:
        findings.fine.append("the same line twice")


async def _alone(
    run: ProbeRun, operation: Operation, first: Exchange, request: WireRequest, note: str
) -> tuple[Exchange, bool]:
    """Send a request with one line; say whether it is certain that it was run anew.

    Ids decide before effects, of which one may be that of an earlier request, counted late.
    """
    later = await later_answer(run, operation, first, request, note)
    told = later.exchange
    if is_marked(run, told) or same_ids(first, told):
        return told, False
    return told, bool(later.ran_again) or other_ids(first, told)


def _accept_one_of_two(
    run: ProbeRun, findings: Findings, how: str, shown: Sequence[Exchange]
) -> None:
    if run.profile.strict_key:
        what = f"a request with two different keys was run ({shown[0].outcome()}): {how}"
        findings.add(Fault.KEY_ACCEPTED, what, *shown)
    else:
        findings.fine.append(f"two lines ({how})")
