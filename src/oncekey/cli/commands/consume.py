"""`oncekey consume`."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import click

from oncekey.cli.command_options import TRACEBACK_ENV, duration
from oncekey.cli.consume_loop import ConsumerGroup, Member, members_of
from oncekey.cli.consume_report import ConsumeReport
from oncekey.cli.exit_codes import ExitCode
from oncekey.cli.import_object import import_object
from oncekey.cli.output import Output, error_line
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.core.errors import OncekeyError

EVERY_DEFAULT = "10s"
EVERY_MIN_US = 100_000
EVERY_MAX_US = 3_600_000_000
LIVE_SECONDS = 0.25  # how often the live line is drawn


class ConsumerFailed(OncekeyError):
    """A consumer ended with an error that is not one of oncekey's."""


@click.command()
@click.argument("names", metavar="MODULE:CONSUMER...", nargs=-1, required=True)
@click.option(
    "--every",
    callback=duration(EVERY_MIN_US, EVERY_MAX_US),
    default=EVERY_DEFAULT,
    show_default=True,
    metavar="DURATION",
    help="How often figures are printed where no terminal shows them live.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")
def consume(names: tuple[str, ...], every: int, as_json: bool) -> int:
    """Consume queues until a signal.

    Imports each Consumer or AsyncConsumer named (from the current folder too) and runs them side by
    side. A name may also be that of a list of them, of a function that returns one, or of a
    publisher of an outbox.

    The first SIGINT or SIGTERM takes no more messages, gives back those whose handlers have not
    begun, and ends with exit code 0 when the others are done; if some still run after the
    consumer's stop_timeout, with 1. A second signal ends it at once. Whatever is not settled is
    delivered again, and its key says whether it was handled.

    It begins only if the queue can be consumed safely; else one line says why not (exit code 2 for
    a setting, 1 for a refused login). A broker or a store that does not answer, at the start or
    later, is waited for, with a line in the log each time; nothing is removed meanwhile.

    With --json every line on stdout is a document with `at` and `event`: begin, figures (every
    --every), settled (each message that was not just removed), log (warnings, unless your module
    sets up logging itself), stopping, end.

    \b
    Examples:
      oncekey consume shop.orders:consumer
      oncekey consume shop.orders:consumer shop.mails:consumer
      oncekey consume shop.orders:consumer --json --every 1m
    """
    out = Output(as_json=as_json)
    _let_modules_set_up_logging()
    members = [member for name in names for member in members_of(import_object(name), name)]
    _refuse_twice(members)
    try:
        group = _consume(out, members, every / 1_000_000)
    except KeyboardInterrupt:
        error_line("ended at once; what was in hand is delivered again")
        _end_now(ExitCode.INTERRUPTED)
    failed = group.failed
    if failed is not None and failed.error is not None:
        _raise(failed, failed.error)
    if group.left:
        error_line(f"{group.left} handlers did not end in time; their messages are delivered again")
        _end_now(ExitCode.FAILED)
    return ExitCode.OK


def _consume(out: Output, members: list[Member], every: float) -> ConsumerGroup:
    with out.progress("consuming") as show, stop_on_signal() as stop:
        report = ConsumeReport(out, members, show, every)
        group = ConsumerGroup(members, stop.wake)
        with report.log():
            report.began()
            group.start()
            _watch(group, report, stop, LIVE_SECONDS if out.shows_progress else every)
    report.ended()
    return group


def _watch(group: ConsumerGroup, report: ConsumeReport, stop: StopRequest, tick: float) -> None:
    """Report until all consumers have ended: because they were stopped, or one has failed."""
    while not (stop.requested or group.failed or group.has_ended):
        stop.wait(tick)
        report.refresh()
    in_hand = group.in_hand
    group.stop()
    if stop.requested:
        report.stops(in_hand)
    while not group.wait(min(tick, 1.0)):
        report.refresh()


def _let_modules_set_up_logging() -> None:
    """`logging.basicConfig` does nothing where there is a handler already."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.NullHandler):
            root.removeHandler(handler)


def _refuse_twice(members: list[Member]) -> None:
    if len({id(member.target) for member in members}) < len(members):
        raise click.UsageError("the same consumer is named twice")


def _raise(member: Member, error: BaseException) -> NoReturn:
    if isinstance(error, (OncekeyError, OSError)) or os.environ.get(TRACEBACK_ENV):
        raise error
    text = f"{member.name} ended with {type(error).__name__}: {error}"
    raise ConsumerFailed(text) from error


def _end_now(code: int) -> NoReturn:
    """End the process although threads run that cannot be stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
