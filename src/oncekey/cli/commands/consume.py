"""`oncekey consume`, and what it shows: figures, messages that need a look, and its log.

At a terminal a live line has the figures; elsewhere they are a line per period. With --json
everything is one JSON document per line on stdout.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import click

from oncekey.cli.command_input import TRACEBACK_ENV, duration, import_object
from oncekey.cli.consumer_group import ConsumerGroup, Member, MemberFigures, members_of, text_of
from oncekey.cli.output import ExitCode, Output, error_line, utc
from oncekey.cli.password_redaction import redact_remembered
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.core.errors import OncekeyError
from oncekey.queues.consumer_base import ConsumerBase
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.disposition_report import LINE
from oncekey.queues.queue_message import Message

EVERY_DEFAULT = "10s"
EVERY_MIN_US = 100_000
EVERY_MAX_US = 3_600_000_000
LIVE_SECONDS = 0.25  # how often the live line is drawn
_OWN_LOGGER: Final = "oncekey"
# What is shown of single messages: without --json only what somebody may want to look at.
_SHOWN: Final = frozenset((Kind.RETRY, Kind.DEAD_LETTER, Kind.PARK))


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


# --- the report -----------------------------------------------------------------------------------


class ConsumeReport:
    """Shows what a group of consumers does. Its methods may be called from any thread."""

    def __init__(
        self, out: Output, members: Sequence[Member], show: Callable[[str], None], every: float
    ) -> None:
        self._out = out
        self._show = show
        self._every = every
        self._due = time.monotonic() + every
        self._lock = threading.Lock()
        self._figures = [MemberFigures(member) for member in members]
        self._shown: dict[str, str] = {}
        for member in members:
            if isinstance(member.target, ConsumerBase):
                _call_also(member.target, self._reporter(member))

    def began(self) -> None:
        names = [figures.member.name for figures in self._figures]
        if self._out.as_json:
            self._event("begin", consumers=names)
        else:
            self._out.line(f"consuming: {', '.join(names)}; Ctrl-C or SIGTERM stops it gracefully")

    def refresh(self) -> None:
        """Show the figures: in the live line now, elsewhere if it is time for that."""
        if self._out.shows_progress and not self._out.as_json:
            texts = [f"{one.member.name}: {text_of(one.now())}" for one in self._figures]
            self._show(" | ".join(texts))
            return
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        for one in self._figures:
            figures = one.now()
            if self._out.as_json:
                self._event("figures", consumer=one.member.name, **figures)
                continue
            text = text_of({name: n for name, n in figures.items() if name != "per_second"})
            if self._shown.get(one.member.name) != text:  # an idle consumer is silent
                self._shown[one.member.name] = text
                self._line(f"{one.member.name}: {text_of(figures)}")

    def stops(self, in_hand: int) -> None:
        if self._out.as_json:
            self._event("stopping", in_hand=in_hand)
        else:
            error_line(f"stopping, with {in_hand} in hand; a second signal ends it at once")

    def ended(self) -> None:
        for one in self._figures:
            figures = one.now()
            figures.pop("per_second", None)
            if self._out.as_json:
                self._event("end", consumer=one.member.name, **figures)
            elif one.member.error is None or any(figures.values()):  # else it has not begun
                self._out.line(f"{one.member.name} ended: {text_of(figures)}")

    @contextmanager
    def log(self) -> Iterator[None]:
        """Show the log while this is open, if nobody has set up another place for it."""
        root = logging.getLogger()
        if root.handlers or logging.getLogger(_OWN_LOGGER).handlers:
            yield
            return
        handler = _LogHandler(self._log_line)
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)

    # --- lines --------------------------------------------------------------------------------

    def _reporter(self, member: Member) -> Callable[[Message, Disposition], None]:
        def report(message: Message, disposition: Disposition) -> None:
            if self._out.as_json:
                if disposition.kind is not Kind.REMOVE:
                    self._event("settled", consumer=member.name, **_settled(message, disposition))
            elif disposition.kind in _SHOWN:
                later = f" in {disposition.seconds:g} s" if disposition.seconds else ""
                self._line(
                    f"{member.name}: message {message.delivery_id or 'without an id'} of "
                    f"{message.queue}: {disposition.kind}{later}: {disposition.reason}"
                )

        return report

    def _log_line(self, record: logging.LogRecord) -> None:
        text = redact_remembered(_message_of(record))
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        if self._out.as_json:
            self._event("log", level=record.levelname.lower(), logger=record.name, text=text)
        elif record.name.partition(".")[0] == _OWN_LOGGER:
            error_line(text)
        else:  # of a client, say
            error_line(f"{record.name}: {text}")

    def _line(self, text: str) -> None:
        with self._lock:
            self._out.line_above(f"{utc(datetime.now(UTC))}  {text}")

    def _event(self, name: str, **fields: Any) -> None:
        with self._lock:
            self._out.event({"at": datetime.now(UTC), "event": name, **fields})


def _settled(message: Message, disposition: Disposition) -> dict[str, Any]:
    return {
        "queue": message.queue,
        "message": message.delivery_id,
        "deliveries": message.receive_count,
        "disposition": str(disposition.kind),
        "seconds": round(disposition.seconds, 3),
        "reason": disposition.reason,
    }


def _call_also(consumer: ConsumerBase, report: Callable[[Message, Disposition], None]) -> None:
    """Report what the consumer settles, beside what its owner wants to be called."""
    own = consumer.on_settled

    def call(message: Message, disposition: Disposition) -> None:
        report(message, disposition)
        if own is not None:
            own(message, disposition)

    consumer.on_settled = call


# --- the log --------------------------------------------------------------------------------------


class _LogHandler(logging.Handler):
    """Gives records to a function, but for those of dispositions, which are shown anyway."""

    def __init__(self, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != LINE:
            self._write(record)


def _message_of(record: logging.LogRecord) -> str:
    """The text of a record. What clients of brokers log may contain whole messages, which are
    nobody's to read in a log; they are replaced by their sizes."""
    args = record.args
    if args and record.name.partition(".")[0] != _OWN_LOGGER:
        shown: Any = (
            {name: _without_body(value) for name, value in args.items()}
            if isinstance(args, Mapping)
            else tuple(_without_body(value) for value in args)
        )
        text: str = str(record.msg) % shown
        return text
    return record.getMessage()


def _without_body(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _Shown(f"({len(value)} bytes)")
    if hasattr(value, "body"):
        return _Shown(f"(a {type(value).__name__})")
    return value


class _Shown(str):
    """A text that is the same with %s and %r."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
