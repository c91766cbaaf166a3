"""What `oncekey verify` prints: the plan of a dry run, and what was found."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from oncekey.cli.output import Output
from oncekey.cli.verify_options import VerifyPlan
from oncekey.verify.first_request import FirstRequestFailed
from oncekey.verify.observability import far_counter, how_to_observe, missing_for
from oncekey.verify.recorded_exchange import curl_line
from oncekey.verify.remedies import remedy
from oncekey.verify.shown_exchange import ShownEntry, story
from oncekey.verify.target import Operation, Target, Variant, new_values
from oncekey.verify.verdict import Guarantee, Status, Verdict
from oncekey.verify.verification import Verification

STYLES = {Status.HOLDS: "green", Status.VIOLATED: "bold red", Status.NOT_OBSERVABLE: "yellow"}
_STATUS_WIDTH = max(map(len, Status))
_SLUG_WIDTH = max(len(guarantee.slug) for guarantee in Guarantee)
# With --json, --html and --junit there is no such limit.
_ENTRIES_MAX = 12


def print_plan(plan: VerifyPlan, out: Output) -> None:
    """Prints what would be sent; as data with --json."""
    if out.as_json:
        out.data(plan_data(plan))
        return
    target, limits = plan.target, plan.limits
    out.line("Nothing is sent. It would be sent:")
    out.line("")
    out.line(f"  {example(target)}")
    out.line("")
    out.rows(
        {
            "to": str(target.origin) + ("" if target.origin.is_loopback else "  (asks first)"),
            "profile": plan.profile.title,
            "at most": f"{limits.requests} requests, {limits.concurrency} at once, "
            f"{limits.total_seconds:g} s",
            "effects": _effects(target),
            "callers": _callers(target),
            "variants": ", ".join(kind for kind in target.variants if kind != Variant.MAIN)
            or "none",
        }
    )
    out.line("")
    for probe in plan.probes:
        need = missing_for(probe.guarantee, target)
        if need is None:
            out.line(f"  {probe.guarantee.slug:<{_SLUG_WIDTH}}  {probe.sends}")
        else:
            out.line(f"  {probe.guarantee.slug:<{_SLUG_WIDTH}}  not observable: {need.missing}")
            out.line(f"  {'':<{_SLUG_WIDTH}}  {need.advice}")


def plan_data(plan: VerifyPlan) -> dict[str, object]:
    """Return the plan as plain data."""
    target = plan.target
    needs = {probe.guarantee: missing_for(probe.guarantee, target) for probe in plan.probes}
    return {
        "format": 1,
        "dry_run": True,
        "request": example(target),
        "asks_first": not target.origin.is_loopback or far_counter(target) is not None,
        "profile": plan.profile.name,
        "max_requests": plan.limits.requests,
        "max_seconds": plan.limits.total_seconds,
        "effects": _effects(target),
        "variants": [kind.value for kind in target.variants if kind is not Variant.MAIN],
        "guarantees": [
            {
                "guarantee": probe.guarantee.slug,
                "sends": probe.sends,
                "missing": need.missing if (need := needs[probe.guarantee]) else "",
                "advice": need.advice if need else "",
            }
            for probe in plan.probes
        ],
    }


def example(target: Target) -> str:
    """Return one request of the verification as a command line."""
    key = "11111111-2222-4333-8444-555555555555"
    request = Operation(target, Variant.MAIN, key, new_values(key)).request()
    return curl_line(request, str(target.origin))


def print_first_failure(failed: FirstRequestFailed, plan: VerifyPlan, out: Output) -> None:
    """Prints why the probes did not begin; as data with --json."""
    entries = []
    if failed.exchange is not None:
        entries = story([failed.exchange], str(plan.target.origin))
    if out.as_json:
        curl = entries[0].curl if entries else ""
        out.data({"format": 1, "not_begun": str(failed), "request": curl})
        return
    out.line(f"Not begun: {failed}")
    for entry in entries:
        _print_entry(entry, out)


def verdict_line(verdict: Verdict) -> str:
    """Return one line about a guarantee."""
    what = verdict.summary
    if verdict.status is Status.VIOLATED:
        what = f"{verdict.violations[0].fault.title}: {what}"
    return f"{verdict.status:<{_STATUS_WIDTH}}  {verdict.guarantee.slug:<{_SLUG_WIDTH}}  {what}"


def print_verification(verification: Verification, out: Output) -> None:
    """Prints what each verdict stands on, all of what is violated, and how it stands as a whole."""
    for status in (Status.HOLDS, Status.NOT_OBSERVABLE, Status.VIOLATED):
        found = [verdict for verdict in verification.verdicts if verdict.status is status]
        if not found:
            continue
        out.line("")
        out.line(_HEADINGS[status], STYLES[status])
        for verdict in found:
            _print_verdict(verdict, verification.target, out)
    out.line("")
    out.line(headline(verification))


_HEADINGS = {
    Status.HOLDS: "Holds, as far as was seen",
    Status.NOT_OBSERVABLE: "Not observable from outside, yet",
    Status.VIOLATED: "Violated",
}


def headline(verification: Verification) -> str:
    """Return the whole verification as one line."""
    counts = {status: verification.count(status) for status in Status}
    sent = f"{verification.requests} requests in {verification.seconds:.1f} s"
    return (
        f"{counts[Status.VIOLATED]} violated, {counts[Status.HOLDS]} hold, "
        f"{counts[Status.NOT_OBSERVABLE]} not observable; {sent}, profile "
        f"{verification.profile.title}"
    )


def print_files(paths: Sequence[Path | None], out: Output) -> None:
    """Prints which reports were written."""
    for path in paths:
        if path is not None:
            out.line(f"written: {shlex.quote(str(path))}")


def _print_verdict(verdict: Verdict, target: Target, out: Output) -> None:
    out.line(f"  {verdict.guarantee.title}")
    if verdict.status is Status.HOLDS:
        out.line(f"    n = {verdict.n}; {verdict.window}")
    elif verdict.status is Status.NOT_OBSERVABLE:
        out.line(f"    {verdict.summary}")
        out.line(f"    {how_to_observe(verdict, target)}")
    for part in verdict.unseen:
        out.line(f"    not seen: {part}")
    for violation in verdict.violations:
        fault = violation.fault
        out.line(f"    {fault.title} ({fault.slug})", "bold red")
        out.line(f"    what:  {violation.what}")
        out.line(f"    cause: {fault.cause}")
        out.line(f"    mend:  {remedy(fault)}")
        entries = story(violation.exchanges, str(target.origin))
        for entry in entries[:_ENTRIES_MAX]:
            _print_entry(entry, out)
        if len(entries) > _ENTRIES_MAX:
            out.line(f"      and {len(entries) - _ENTRIES_MAX} more (--html, --json)")


def _print_entry(entry: ShownEntry, out: Output) -> None:
    together = f" ({entry.count} times, together)" if entry.together else ""
    if entry.note or together:
        out.line(f"      # {entry.note}{together}")
    out.line(f"      {entry.curl}", "cyan")
    for answer in entry.answers:
        share = f"{answer.count} of {entry.count}: " if entry.together else ""
        out.line(f"      -> {share}{answer.outcome}  {answer.body}".rstrip())


def _effects(target: Target) -> str:
    if target.effects is None:
        return "not counted"
    asks = "" if far_counter(target) is None else "  (asks first)"
    return f"counted by {target.effects.describe()}{asks}"


def _callers(target: Target) -> str:
    told = {
        "the caller": target.caller if target.caller.headers else None,
        "another": target.other_caller,
        "a bad one": target.bad_caller,
    }
    names = [name for name, caller in told.items() if caller is not None]
    return ", ".join(names) or "no credentials"
