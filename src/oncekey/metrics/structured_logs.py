"""Events as structured log lines: for structlog, or as JSON through any logger.

    StructuredLogs(once)                              # JSON lines to the logger "oncekey.events"
    StructuredLogs(once, structlog.get_logger())      # to structlog, with its processors

A line has the event's name, operation, scope, tag, fence, attempt, surface, route, durations and,
of a changed guarantee, the reason; never the key, a request or an answer. Rare events are warnings,
limited as in the plain log; the usual ones are at DEBUG unless `usual` says otherwise.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final, Protocol

from oncekey.core.events import Event
from oncekey.engine.event_log import RARE, LogLines
from oncekey.engine.once_base import OnceBase
from oncekey.engine.port import AnyPort
from oncekey.metrics.event_counts import OUTCOMES, store_name

LOGGER: Final = "oncekey.events"


class StructuredLogger(Protocol):
    """What a structlog logger has: methods by level, which take an event and its fields."""

    def debug(self, event: str, /, **fields: Any) -> Any: ...
    def info(self, event: str, /, **fields: Any) -> Any: ...
    def warning(self, event: str, /, **fields: Any) -> Any: ...


class JsonLogger:
    """Writes each line as one JSON document to a standard logger. `record.fields` has the same as a
    dict, for formatters of your own."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger(LOGGER)

    def debug(self, event: str, /, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            line = {"event": event, **fields}
            self._logger.log(level, "%s", json.dumps(line), extra={"fields": line})


class StructuredLogs:
    """Subscribes to an engine and writes its events.

    logger   a structlog logger, or None for JSON lines to the logger "oncekey.events"
    usual    the level of first runs, replays and other events that are no cause for concern:
             "debug", "info", or None to leave them out
    store    the field `store`; the kind of store by default
    """

    def __init__(
        self,
        once: OnceBase,
        logger: StructuredLogger | None = None,
        *,
        usual: str | None = "debug",
        store: str | None = None,
    ) -> None:
        if usual not in ("debug", "info", None):
            raise ValueError(f"usual={usual!r} must be 'debug', 'info' or None")
        self._logger = logger or JsonLogger()
        self._usual = usual
        self._store = store or store_name(AnyPort(once).store)
        self._lines = LogLines(lambda: time.monotonic_ns() // 1_000)
        self.stop = once.subscribe(self.write, usual=usual is not None)

    def write(self, event: Event) -> None:
        """Write the lines of one event."""
        fields = {**fields_of(event), "store": self._store}
        for line in self._lines.lines_for(event):
            more = {"left_out": line.left_out} if line.left_out else {}
            name = line.name or name_of(event)
            self._logger.warning(f"oncekey.{name}", text=line.text, **fields, **more)
        if self._usual is not None and event.kind not in RARE:
            getattr(self._logger, self._usual)(f"oncekey.{name_of(event)}", **fields)


def name_of(event: Event) -> str:
    """The event's name, the same as the label `outcome` of the metrics."""
    return OUTCOMES[event.kind]


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of a line; durations are in seconds."""
    fields: dict[str, Any] = {
        "operation": event.operation,
        "scope": event.scope,
        "tag": event.tag,
        "surface": event.surface,
        "elapsed": event.elapsed_us / 1_000_000,
    }
    if event.route:
        fields["route"] = event.route
    if event.fence:
        fields |= {"fence": event.fence, "attempt": event.attempt}
    if event.from_cache:
        fields["from_cache"] = True
    if event.body_us or event.finish_us:
        fields |= {"body": event.body_us / 1_000_000, "finish": event.finish_us / 1_000_000}
    if event.reason:
        fields["reason"] = event.reason
    return fields
