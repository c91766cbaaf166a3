"""One run of `oncekey verify`: it asks, sends the first request, runs the probes, prints what they
found, and writes the reports.

This module needs the packages of `oncekey[verify]`.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from oncekey.cli.command_input import ask, can_ask
from oncekey.cli.output import ExitCode, Output, UsageProblem
from oncekey.cli.password_redaction import remember_secret
from oncekey.cli.verify_plan import VerifyOptions, VerifyPlan, plan_of
from oncekey.verify import probes
from oncekey.verify.first_request import FirstRequestFailed, try_first_request
from oncekey.verify.observability import far_counter, how_to_observe, missing_for
from oncekey.verify.probe import Budget, Probe
from oncekey.verify.recorded_exchange import curl_line
from oncekey.verify.remedies import remedy
from oncekey.verify.report_html import html_report
from oncekey.verify.report_json import json_report
from oncekey.verify.report_junit import junit_report, junit_without_verdicts
from oncekey.verify.shown_exchange import ShownEntry, story
from oncekey.verify.target import Operation, Target, Variant, new_values
from oncekey.verify.verdict import Guarantee, Status, Verdict
from oncekey.verify.verification import Verification, verify

_REFRESH_SECONDS = 0.2
_STYLES = {Status.HOLDS: "green", Status.VIOLATED: "bold red", Status.NOT_OBSERVABLE: "yellow"}
_STATUS_WIDTH = max(map(len, Status))
_SLUG_WIDTH = max(len(guarantee.slug) for guarantee in Guarantee)
# With --json, --html and --junit there is no such limit.
_ENTRIES_MAX = 12
_HEADINGS = {
    Status.HOLDS: "Holds, as far as was seen",
    Status.NOT_OBSERVABLE: "Not observable from outside, yet",
    Status.VIOLATED: "Violated",
}


def run_verify(options: VerifyOptions) -> ExitCode:
    """Does all that the command does, and returns its exit code."""
    out = Output(as_json=options.as_json)
    plan = plan_of(options, probes.PROBES)
    _remember_secrets(plan)
    if options.dry_run:
        _print_plan(plan, out)
        return ExitCode.OK
    _check_files(options)
    _ask_if_far(plan, options)
    try:
        verification = asyncio.run(_verify(plan, out))
    except FirstRequestFailed as failed:
        _print_first_failure(failed, plan, out)
        if options.junit is not None:
            _write(options.junit, junit_without_verdicts(plan.target, str(failed)))
        was_sent = failed.exchange is not None and failed.exchange.response is not None
        return ExitCode.USAGE if was_sent else ExitCode.FAILED
    _write_files(verification, options)
    if options.as_json:
        out.data(json_report(verification))
    else:
        _print_verification(verification, out)
        _print_files([options.html, options.junit], out)
    if verification.is_interrupted:
        return ExitCode.INTERRUPTED
    is_unseen = options.strict and verification.count(Status.NOT_OBSERVABLE) > 0
    return ExitCode.UNHEALTHY if verification.is_violated or is_unseen else ExitCode.OK


async def _verify(plan: VerifyPlan, out: Output) -> Verification:
    budget = plan.limits.budget()
    with out.progress("the first request") as show:
        target = await _target(plan, budget)
        first = await try_first_request(target, plan.profile, plan.limits, budget)
        async with _shown_progress(plan, budget, show) as begun:

            def on_probe(probe: Probe, verdict: Verdict | None) -> None:
                begun(probe)
                if verdict is not None and not out.as_json:
                    style = _STYLES[verdict.status]
                    out.line_above(_verdict_line(verdict), style)

            return await verify(
                first.target,
                plan.profile,
                plan.probes,
                limits=plan.limits,
                budget=budget,
                on_probe=on_probe,
                keep_if_cancelled=True,
            )


async def _target(plan: VerifyPlan, budget: Budget) -> Target:
    """Returns the target; where requests are generated, with those that the API accepts."""
    if plan.generated is None:
        return plan.target
    found = await plan.generated.find(plan.target, plan.profile, plan.limits, budget)
    made = plan.settings.target(generated=found.variants[Variant.MAIN])
    return replace(made, variants={**found.variants, **made.variants})


@asynccontextmanager
async def _shown_progress(
    plan: VerifyPlan, budget: Budget, show: Callable[[str], None]
) -> AsyncIterator[Callable[[Probe], None]]:
    """Shows which guarantee is looked at, how much was sent, and the time; gives the function
    that says which probe has begun."""
    began = time.monotonic()
    current = ""

    def begin(probe: Probe) -> None:
        nonlocal current
        at = plan.probes.index(probe) + 1
        current = f"{at} of {len(plan.probes)}: {probe.guarantee.title}"

    async def refresh() -> None:
        while True:
            sent = plan.limits.requests - budget.requests_left
            show(f"{current} · {sent} requests · {time.monotonic() - began:.0f} s")
            await asyncio.sleep(_REFRESH_SECONDS)

    task = asyncio.create_task(refresh())
    try:
        yield begin
    finally:
        task.cancel()


def _ask_if_far(plan: VerifyPlan, options: VerifyOptions) -> None:
    """Raises UsageProblem unless somebody agrees that another host is sent all this."""
    if options.yes:
        return
    counted_at = far_counter(plan.target)
    if not plan.target.origin.is_loopback:
        what = (
            f"up to {plan.limits.requests} requests, many of them with real effects and some wrong "
            f"on purpose, would be sent to {plan.target.origin}"
        )
    elif counted_at is not None:
        what = f"hundreds of requests, to count effects, would be sent to {counted_at}"
    else:
        return
    if not can_ask():
        raise UsageProblem(f"{what}: --yes agrees to that, --dry-run shows them")
    if not ask(f"{what[0].upper()}{what[1:]}. Go on?"):
        raise UsageProblem("nothing was sent")


def _remember_secrets(plan: VerifyPlan) -> None:
    target = plan.target
    for caller in (target.caller, target.other_caller, target.bad_caller):
        for _, value in caller.headers if caller is not None else ():
            remember_secret(value.rpartition(" ")[2])


def _check_files(options: VerifyOptions) -> None:
    """Raises UsageProblem now for a report that could not be written in the end."""
    for path in (options.html, options.junit):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageProblem(f"{path}: there is no folder {path.parent}")


def _write_files(verification: Verification, options: VerifyOptions) -> None:
    if options.html is not None:
        _write(options.html, html_report(verification))
    if options.junit is not None:
        _write(options.junit, junit_report(verification, strict=options.strict))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from error


# --- what is printed ------------------------------------------------------------------------------


def _print_plan(plan: VerifyPlan, out: Output) -> None:
    """Prints what would be sent; as data with --json."""
    if out.as_json:
        out.data(_plan_data(plan))
        return
    target, limits = plan.target, plan.limits
    out.line("Nothing is sent. It would be sent:")
    out.line("")
    out.line(f"  {_example(target)}")
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


def _plan_data(plan: VerifyPlan) -> dict[str, object]:
    """Return the plan as plain data."""
    target = plan.target
    needs = {probe.guarantee: missing_for(probe.guarantee, target) for probe in plan.probes}
    return {
        "format": 1,
        "dry_run": True,
        "request": _example(target),
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


def _example(target: Target) -> str:
    """Return one request of the verification as a command line."""
    key = "11111111-2222-4333-8444-555555555555"
    request = Operation(target, Variant.MAIN, key, new_values(key)).request()
    return curl_line(request, str(target.origin))


def _print_first_failure(failed: FirstRequestFailed, plan: VerifyPlan, out: Output) -> None:
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


def _verdict_line(verdict: Verdict) -> str:
    """Return one line about a guarantee."""
    what = verdict.summary
    if verdict.status is Status.VIOLATED:
        what = f"{verdict.violations[0].fault.title}: {what}"
    return f"{verdict.status:<{_STATUS_WIDTH}}  {verdict.guarantee.slug:<{_SLUG_WIDTH}}  {what}"


def _print_verification(verification: Verification, out: Output) -> None:
    """Prints what each verdict stands on, all of what is violated, and how it stands as a whole."""
    for status in (Status.HOLDS, Status.NOT_OBSERVABLE, Status.VIOLATED):
        found = [verdict for verdict in verification.verdicts if verdict.status is status]
        if not found:
            continue
        out.line("")
        out.line(_HEADINGS[status], _STYLES[status])
        for verdict in found:
            _print_verdict(verdict, verification.target, out)
    out.line("")
    out.line(_headline(verification))


def _headline(verification: Verification) -> str:
    """Return the whole verification as one line."""
    counts = {status: verification.count(status) for status in Status}
    sent = f"{verification.requests} requests in {verification.seconds:.1f} s"
    return (
        f"{counts[Status.VIOLATED]} violated, {counts[Status.HOLDS]} hold, "
        f"{counts[Status.NOT_OBSERVABLE]} not observable; {sent}, profile "
        f"{verification.profile.title}"
    )


def _print_files(paths: Sequence[Path | None], out: Output) -> None:
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
    callers = {
        "the caller": target.caller if target.caller.headers else None,
        "another": target.other_caller,
        "a bad one": target.bad_caller,
    }
    names = [name for name, caller in callers.items() if caller is not None]
    return ", ".join(names) or "no credentials"
