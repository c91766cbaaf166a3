"""What `oncekey consume` shows: figures while it runs, messages that need a look, and its log.

At a terminal a live line has the figures; elsewhere they are a line per period. With --json
everything is one JSON document per line on stdout.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from oncekey import Event, EventKind
from oncekey.cli.consume_loop import Member
from oncekey.cli.output import Output, error_line
from oncekey.cli.redact import redact_remembered
from oncekey.queues.consumer_base import ConsumerBase
from oncekey.queues.consumer_settings import SURFACE
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.disposition_report import LINE
from oncekey.queues.queue_message import Message

RATE_SECONDS: Final = 1.0  # the shortest time that a rate is measured over
_FIGURES: Final = {
    Kind.REMOVE: "removed",
    Kind.RETRY: "retried",
    Kind.HIDE: "hidden",
    Kind.DEAD_LETTER: "dead_letters",
    Kind.PARK: "parked",
    Kind.GIVE_BACK: "given_back",
}
_OWN_LOGGER: Final = "oncekey"
# What is shown of single messages: without --json only what somebody may want to look at.
_SHOWN: Final = frozenset((Kind.RETRY, Kind.DEAD_LETTER, Kind.PARK))


class MemberFigures:
    """The figures of one consumer."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.is_consumer = isinstance(member.target, ConsumerBase)
        self._replayed = 0
        self._rate = 0.0
        self._measured = (time.monotonic(), 0)
        if self.is_consumer and member.once is not None:
            member.once.subscribe(self._count_replay)

    def _count_replay(self, event: Event) -> None:
        if event.kind is EventKind.REPLAYED and event.surface == SURFACE:
            self._replayed += event.operation == self.member.name

    def now(self) -> dict[str, float]:
        """The figures by name; those of a publisher are what it counts itself."""
        counts: Mapping[Any, int] = dict(getattr(self.member.target, "counts", {}))
        if not self.is_consumer:
            return {str(name).replace(" ", "_"): count for name, count in counts.items()}
        figures: dict[str, float] = {name: counts.get(kind, 0) for kind, name in _FIGURES.items()}
        self._measure(sum(counts.values()))
        figures |= {"replayed": self._replayed, "in_hand": self.member.in_hand}
        return figures | {"per_second": round(self._rate, 1)}

    def _measure(self, total: int) -> None:
        now, (then, before) = time.monotonic(), self._measured
        if now - then >= RATE_SECONDS:
            self._rate = (total - before) / (now - then)
            self._measured = (now, total)


def text_of(figures: Mapping[str, float]) -> str:
    """Figures as they are read: what never happened is left out, but for what was removed, or
    published."""
    parts = []
    for name, value in figures.items():
        if name == "per_second":
            parts.append(f"{value:,.0f}/s")
        elif value or not parts:
            noun = "dead letter" if (name, value) == ("dead_letters", 1) else name.replace("_", " ")
            parts.append(f"{value:,} {noun}")
    return ", ".join(parts) or "nothing"


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
            self._out.line_above(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {text}")

    def _event(self, name: str, **fields: Any) -> None:
        with self._lock:
            self._out.event({"at": datetime.now(UTC), "event": name, **fields})


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
