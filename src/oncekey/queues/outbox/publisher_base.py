"""What the publishers of threads and of tasks share: settings, figures, and their flow."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.engine.clock import Clock
from oncekey.queues.disposition import describe
from oncekey.queues.outbox.publisher_flow import Effect, PublisherSettings, Publishing, Report

_log = logging.getLogger("oncekey")


class PublisherBase:
    """A publisher without its thread or task.

    counts   how many messages were published, failed and parked so far
    """

    def __init__(self, clock: Clock, batch_max: int, options: dict[str, Any]) -> None:
        try:
            self.settings = PublisherSettings(**options)
        except TypeError as error:
            raise ConfigurationError(f"OutboxPublisher: {error}") from error
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._stopped = False
        self._is_running = False
        self._flow = Publishing(self.settings, clock.now, batch_max, lambda: self._stopped)

    @property
    def name(self) -> str:
        return self.settings.name

    def _begin(self) -> Generator[Effect, Any, None]:
        if self._is_running:
            raise ConfigurationError(f"publisher {self.name!r} is running already")
        self._is_running = True
        return self._flow.loop(self._count)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Log why `run` ends, whatever ends it: what a thread or a task raises is easily missed."""
        try:
            yield
        except asyncio.CancelledError:
            _log.info("publisher %s ends: its task was cancelled", self.name)
            raise
        except BaseException as error:
            _log.error("publisher %s ends: %s", self.name, describe(error))
            raise
        else:
            _log.info("publisher %s ends: it was stopped", self.name)

    def _tell_unanswered(self) -> None:
        _log.warning(
            "publisher %s: the broker does not answer; what it has not confirmed stays in the "
            "outbox and is sent again, under the same ids",
            self.name,
        )

    def _until_empty(self) -> Generator[Effect, Any, int]:
        """Publish what is due, until nothing is, or the broker cannot be reached."""
        published = 0
        while True:
            report = yield from self._flow.batch()
            yield from self._flow.purge()
            self._count(report)
            published += report.published
            if not report.taken or report.down is not None:
                return published

    def _count(self, report: Report) -> None:
        self.counts.update(published=report.published, failed=report.failed, parked=report.parked)
