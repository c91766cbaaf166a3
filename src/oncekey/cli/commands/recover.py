"""`oncekey recover`: it finishes the abandoned operations of a Once or an AsyncOnce."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from oncekey import AsyncOnce, Completed, Completion, Once
from oncekey.cli.command_input import duration, import_object, json_option
from oncekey.cli.output import ExitCode, Output, UsageProblem, error_line, utc
from oncekey.cli.signals import stop_on_signal
from oncekey.core.duration import human
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.background.completion_flow import COMPLETE_LIMIT_DEFAULT
from oncekey.engine.port import AsyncPort

OnCompletion = Callable[[Completion], object]
Recover = Callable[[int, OnCompletion], Completed]
LIMIT_MAX = 10_000
EVERY_MIN_US = 1_000_000
EVERY_MAX_US = 24 * 3_600_000_000
_OPEN = ("unknown", "error", "left")


@click.command()
@click.argument("once", metavar="MODULE:ONCE")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=COMPLETE_LIMIT_DEFAULT,
    show_default=True,
    help="Operations to take up at a time.",
)
@click.option(
    "--every",
    callback=duration(EVERY_MIN_US, EVERY_MAX_US),
    metavar="DURATION",
    help="Look again after this time (10s, 1m), until interrupted.",
)
@json_option
@click.pass_context
def recover(
    context: click.Context, once: str, limit: int, every: int | None, as_json: bool
) -> None:
    """Finish operations that were abandoned.

    An operation is abandoned when its owner died, or failed halfway, and its caller does not come
    back. Imports the Once or AsyncOnce named (from the current folder too) with the operations
    registered on it, and drives theirs to an end: unknown keys are asked about with recover=,
    retry-safe operations are run again with the arguments that were kept, their finished steps
    skipped. What fails is tried again after a growing pause, up to the operation's own `tries`.
    Others are left alone. It may run beside the application, and on several hosts.

    For cron use the plain form: it takes up what is due and ends, with exit code 1 if something is
    still open that somebody should look at. With --every it stays; Ctrl-C and SIGTERM end it after
    the work in progress, and --json prints one document each time something happened.

    \b
    Examples:
      oncekey recover shop.operations:once
      oncekey recover shop.operations:once --every 30s
      oncekey recover shop.operations:once --limit 20 --json
    """
    out = Output(as_json=as_json)
    with _recover_function(import_object(once), once) as recover_some:
        if every is not None:
            _recover_periodically(out, recover_some, limit, every)
            return
        completed = _recover_all(out, recover_some, limit)
    if any(done.outcome in _OPEN for done in completed.done):
        context.exit(ExitCode.FAILED)


def _recover_all(out: Output, recover_some: Recover, limit: int) -> Completed:
    with out.progress("looking for abandoned operations") as show:
        completed = _recover_until_nothing_is_due(recover_some, limit, _reporter(out, show))
    if out.as_json:
        out.data(_as_data(completed))
    else:
        out.line(_summary(completed))
    return completed


def _recover_periodically(out: Output, recover_some: Recover, limit: int, every: int) -> None:
    with stop_on_signal() as stop:
        while not stop.requested:
            try:
                completed = recover_some(limit, _reporter(out, lambda text: None))
            except StoreUnavailable as error:
                error_line(f"{error}; it is tried again in {human(every)}")
            else:
                if out.as_json and completed.done:
                    out.event({"at": datetime.now(UTC), **_as_data(completed)})
            stop.wait(every / 1_000_000)


def _reporter(out: Output, show: Callable[[str], None]) -> Callable[[Completion], None]:
    count = 0

    def report(done: Completion) -> None:
        nonlocal count
        count += 1
        show(f"{count:,} taken up, {done.operation} [{done.tag}] {done.outcome}")
        if not out.as_json:
            out.line(_line(done))

    return report


def _line(done: Completion) -> str:
    scope = f" of {done.scope}" if done.scope else ""
    why = f": {done.detail}" if done.detail else ""
    return f"{utc(datetime.now(UTC))}  {done.operation} [{done.tag}]{scope} {done.outcome}{why}"


def _summary(completed: Completed) -> str:
    counts = Counter(done.outcome for done in completed.done)
    found = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    later = f"{completed.watching:,} under way or to be tried later"
    return f"{found or 'nothing was abandoned'}; {later}"


def _as_data(completed: Completed) -> dict[str, Any]:
    return {
        "done": [done._asdict() for done in completed.done],
        "counts": Counter(done.outcome for done in completed.done),
        "watching": completed.watching,
    }


# --- the loop -------------------------------------------------------------------------------------


@contextmanager
def _recover_function(once: Any, name: str) -> Iterator[Recover]:
    """Gives a function that recovers up to `limit` operations; closes the engine at the end."""
    if isinstance(once, Once):
        _refuse_unregistered(once, name)
        with once:
            yield lambda limit, on_completion: once.complete(limit, on_completion=on_completion)
    elif isinstance(once, AsyncOnce):
        _refuse_unregistered(once, name)
        AsyncPort(once).run_nothing_in_background()
        with asyncio.Runner() as runner:
            try:
                yield lambda limit, on_completion: runner.run(
                    once.complete(limit, on_completion=on_completion)
                )
            finally:
                runner.run(once.close())
    else:
        raise UsageProblem(
            f"{name} is a {type(once).__name__}; name the Once or AsyncOnce that your operations "
            "are registered with"
        )


def _refuse_unregistered(once: Once | AsyncOnce, name: str) -> None:
    if not once.operations:
        raise UsageProblem(
            f"no operation is registered with {name}; name the module that registers them, by "
            "once.operation() or once.recover_with(), when it is imported"
        )


def _recover_until_nothing_is_due(
    recover: Recover, limit: int, on_completion: OnCompletion
) -> Completed:
    """Recovers until nothing is due. What failed now is not due again before its pause is over."""
    done: list[Completion] = []
    looked = 0
    while True:
        completed = recover(limit, on_completion)
        done += completed.done
        looked += completed.looked
        if not completed.looked:
            return Completed(tuple(done), looked, completed.watching)
