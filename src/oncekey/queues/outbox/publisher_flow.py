"""What a publisher does, as generators: they yield effects and are sent the results.

1.  Take messages that are due, under a lease.
2.  Send them, of each order group the oldest first and one at a time. Where one fails, the rest of
    its group is not sent. No sending begins when most of the lease is over.
3.  Settle: what was sent is deleted, what failed is tried again after a backoff or parked, and what
    was not sent is due again at once.

A publisher that dies or is paused in between sends nothing twice by itself: when its lease is over
another one sends the messages again, under the same ids. Threads, tasks and tests drive the same
code. This module sends and stores nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.engine.clock import new_owner
from oncekey.queues.consumer_settings import STOP_TIMEOUT_DEFAULT
from oncekey.queues.disposition import backoff_s, describe
from oncekey.queues.outbox.outgoing_message import OutgoingMessage, message_of
from oncekey.queues.outbox.senders import is_unavailable
from oncekey.stores.outbox_commands import (
    FailedTry,
    OutboxCommand,
    OutboxEntry,
    Purge,
    Settle,
    Take,
)

BATCH_DEFAULT: Final = 100
BATCH_MAX: Final = 1_000
LEASE_DEFAULT: Final = "30s"
LEASE_MIN_US: Final = 100_000
POLL_DEFAULT: Final = "500ms"
MAX_TRIES_DEFAULT: Final = 20
BACKOFF_DEFAULT: Final = "1s"
BACKOFF_MAX_DEFAULT: Final = "5m"
KEEP_DEFAULT: Final = "0s"
PURGE_LIMIT: Final = 1_000
# After this part of the lease no more is sent: what is being sent may take as long again.
_SENDING_PART: Final = 0.5
_SECOND: Final = 1_000_000
_PAUSE_FIRST_US: Final = 500_000
_PAUSE_MAX_US: Final = 30_000_000
_log = logging.getLogger("oncekey")


class Send(NamedTuple):
    """Send these messages. The result is a list of errors and None, or one error for all."""

    messages: Sequence[OutgoingMessage]


class Wait(NamedTuple):
    """Wait, but not once the publisher stops."""

    us: int


Effect = OutboxCommand[Any] | Send | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings:
    """The settings of a publisher, checked.

    name         for logs
    batch        how many messages are taken at a time
    lease        for how long; when it is over, others may send what was not settled
    poll         how long to wait when nothing is due
    max_tries    after so many refusals a message is parked. A broker that cannot be reached has
                 refused nothing
    backoff      how long to wait after the first failed try; doubled with each, up to backoff_max
    keep         how long the rows of published messages stay; a message that is added again under
                 the same id meanwhile is not sent again
    stop_timeout for how long a stop waits for what is being sent, and for the broker to be left
    """

    name: str = "outbox"
    batch: int = BATCH_DEFAULT
    lease: Duration = LEASE_DEFAULT
    poll: Duration = POLL_DEFAULT
    max_tries: int = MAX_TRIES_DEFAULT
    backoff: Duration = BACKOFF_DEFAULT
    backoff_max: Duration = BACKOFF_MAX_DEFAULT
    keep: Duration = KEEP_DEFAULT
    stop_timeout: Duration = STOP_TIMEOUT_DEFAULT

    def __post_init__(self) -> None:
        for name, most in (("batch", BATCH_MAX), ("max_tries", 1_000_000)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigurationError(f"{name}={value!r} must be a whole number up to {most}")
        for name in ("lease", "poll", "backoff", "backoff_max", "keep", "stop_timeout"):
            self.us(name)
        if self.us("lease") < LEASE_MIN_US:
            raise ConfigurationError(f"lease={self.lease!r} is too short; 100ms at least")

    def us(self, name: str) -> int:
        """One of the durations in microseconds."""
        return microseconds(getattr(self, name), name=name)

    @property
    def stop_timeout_s(self) -> float:
        return self.us("stop_timeout") / _SECOND

    def delay_us(self, tries: int) -> int:
        """How long to wait after this many tries."""
        first, most = self.us("backoff") / _SECOND, self.us("backoff_max") / _SECOND
        return int(backoff_s(tries, first, most) * _SECOND)


class Report(NamedTuple):
    """What became of one batch. `down` is the error of a broker that could not be reached."""

    taken: int = 0
    published: int = 0
    failed: int = 0
    parked: int = 0
    down: Exception | None = None


class Publishing:
    """The flow of one publisher. `now` is a monotonic clock in microseconds."""

    def __init__(
        self,
        settings: PublisherSettings,
        now: Callable[[], int],
        batch_max: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._now = now
        self._batch_max = batch_max
        self._is_stopping = is_stopping

    def loop(self, on_report: Callable[[Report], object]) -> Generator[Effect, Any, None]:
        """Publish until it is to stop."""
        settings, pause = self._settings, _PAUSE_FIRST_US
        while not self._is_stopping():
            try:
                report = yield from self.batch()
                yield from self.purge()
            except StoreUnavailable as error:
                _log.warning(
                    "publisher %s: %s; it goes on when the store is back", self.name, error
                )
                report = Report(down=error)
            else:
                on_report(report)
            if report.down is not None:
                yield Wait(pause)
                pause = min(pause * 2, _PAUSE_MAX_US)
                continue
            pause = _PAUSE_FIRST_US
            if not report.taken:
                yield Wait(settings.us("poll"))

    def purge(self) -> Generator[Effect, Any, None]:
        """Delete rows that were kept long enough, one batch of them."""
        if self._settings.us("keep"):
            yield Purge(self._settings.us("keep"), PURGE_LIMIT)

    @property
    def name(self) -> str:
        return self._settings.name

    def batch(self) -> Generator[Effect, Any, Report]:
        """Take, send and settle one batch."""
        settings, owner, began = self._settings, new_owner(), self._now()
        lease = settings.us("lease")
        entries: list[OutboxEntry] = yield Take(owner, lease, settings.batch)
        if not entries:
            return Report()
        sending = _Sending(entries, settings, self._batch_max)
        interruption: BaseException | None = None
        until = began + int(lease * _SENDING_PART)
        try:
            while (wave := sending.next_wave()) and self._now() < until:
                if self._is_stopping():
                    break
                results = yield Send([message_of(entry) for entry in wave])
                sending.note(wave, results)
        except GeneratorExit:
            raise
        except BaseException as error:  # what was sent is settled all the same
            interruption = error
        settle = Settle(
            owner,
            sending.published,
            sending.failed,
            [entry.seq for entry in sending.pending],
            settings.us("keep"),
            settings.batch,
        )
        yield from self._settle(settle, began + lease)
        if interruption is not None:
            raise interruption
        return sending.report(len(entries))

    def _settle(self, settle: Settle, until: int) -> Generator[Effect, Any, None]:
        """Settle, again and again while the lease lasts: what is not settled is sent twice."""
        pause = _PAUSE_FIRST_US
        while True:
            try:
                yield settle
                return
            except StoreUnavailable as error:
                if self._is_stopping() or self._now() + pause >= until:
                    raise
                _log.warning("publisher %s: %s; trying again", self.name, error)
            yield Wait(pause)
            pause = min(pause * 2, _PAUSE_MAX_US)


class _Sending:
    """The messages of one batch: those that wait, and what became of the others."""

    def __init__(
        self, entries: Sequence[OutboxEntry], settings: PublisherSettings, batch_max: int
    ) -> None:
        self.pending = list(entries)
        self.published: list[int] = []
        self.failed: list[FailedTry] = []
        self._settings = settings
        self._batch_max = batch_max
        self._held_back: set[tuple[str, str]] = set()
        self._down: Exception | None = None

    def next_wave(self) -> list[OutboxEntry]:
        """The messages that may be sent now: of each group the oldest one."""
        wave: list[OutboxEntry] = []
        if self._down is not None:
            return wave
        groups = set(self._held_back)
        for entry in self.pending:
            group = _group_of(entry)
            if group is not None:
                if group in groups:
                    continue
                groups.add(group)
            wave.append(entry)
            if len(wave) == self._batch_max:
                break
        return wave

    def note(self, wave: Sequence[OutboxEntry], results: Any) -> None:
        """Note what became of the messages of a wave."""
        if isinstance(results, Exception):
            results = [results] * len(wave)
        if len(results) != len(wave):
            raise ConfigurationError(
                f"the sender was given {len(wave)} messages and returned {len(results)} results"
            )
        sent = {entry.seq for entry in wave}
        self.pending = [entry for entry in self.pending if entry.seq not in sent]
        for entry, error in zip(wave, results, strict=True):
            if error is None:
                self.published.append(entry.seq)
                continue
            group = _group_of(entry)
            if group is not None:
                self._held_back.add(group)
            self.failed.append(self._failed(entry, error))

    def _failed(self, entry: OutboxEntry, error: Exception) -> FailedTry:
        settings = self._settings
        is_refused = not is_unavailable(error)
        if not is_refused:
            self._down = error
        park = is_refused and entry.refusals + 1 >= settings.max_tries
        text = describe(error)
        _log.warning(
            "publisher %s: message %s to %s was not sent, try %d: %s%s",
            settings.name,
            entry.id,
            entry.queue,
            entry.tries,
            text,
            "; it is parked" if park else "",
        )
        # PostgreSQL takes no null character.
        return FailedTry(
            entry.seq,
            settings.delay_us(entry.tries),
            text.replace("\0", "?"),
            is_refused,
            park,
        )

    def report(self, taken: int) -> Report:
        parked = sum(one.park for one in self.failed)
        return Report(taken, len(self.published), len(self.failed), parked, self._down)


def _group_of(entry: OutboxEntry) -> tuple[str, str] | None:
    return None if entry.order_group is None else (entry.queue, entry.order_group)
