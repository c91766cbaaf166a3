"""Runs `oncekey verify`: asks, sends the first request, runs the probes, writes the reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from oncekey.cli import verify_report
from oncekey.cli.confirmation import ask, can_ask
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.open_store import UsageProblem
from oncekey.cli.output import Output
from oncekey.cli.redact import remember_secret
from oncekey.cli.verify_options import VerifyOptions, VerifyPlan, plan_of
from oncekey.verify import probes
from oncekey.verify.first_request import FirstRequestFailed, try_first_request
from oncekey.verify.observability import far_counter
from oncekey.verify.probe import Budget, Probe
from oncekey.verify.report_html import html_report
from oncekey.verify.report_json import json_report
from oncekey.verify.report_junit import junit_report, junit_without_verdicts
from oncekey.verify.target import Target, Variant
from oncekey.verify.verdict import Status, Verdict
from oncekey.verify.verification import Verification, verify

_REFRESH_SECONDS = 0.2


def run_verify(options: VerifyOptions) -> ExitCode:
    """Does all that the command does, and returns its exit code."""
    out = Output(as_json=options.as_json)
    plan = plan_of(options, probes.PROBES)
    _remember_secrets(plan)
    if options.dry_run:
        verify_report.print_plan(plan, out)
        return ExitCode.OK
    _check_files(options)
    _ask_if_far(plan, options)
    try:
        verification = asyncio.run(_verify(plan, out))
    except FirstRequestFailed as failed:
        verify_report.print_first_failure(failed, plan, out)
        if options.junit is not None:
            _write(options.junit, junit_without_verdicts(plan.target, str(failed)))
        was_sent = failed.exchange is not None and failed.exchange.response is not None
        return ExitCode.USAGE if was_sent else ExitCode.FAILED
    _write_files(verification, options)
    if options.as_json:
        out.data(json_report(verification))
    else:
        verify_report.print_verification(verification, out)
        verify_report.print_files([options.html, options.junit], out)
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
                    style = verify_report.STYLES[verdict.status]
                    out.line_above(verify_report.verdict_line(verdict), style)

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
