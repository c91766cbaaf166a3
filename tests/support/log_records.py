"""A real handler of the standard library's logging that keeps what was written.

This module owns the handler and the logger's level while a test runs. It must not know who writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Written(logging.Handler):
    """The records that a logger was given, and their lines as a file would have them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def text(self) -> str:
        """Everything that any formatter could write of the records."""
        return "\n".join(repr(vars(record)) for record in self.records)


@contextmanager
def written_log(name: str, level: int = logging.NOTSET) -> Iterator[Written]:
    """Keep what is written to a logger; its level is changed only if one is given."""
    logger, handler = logging.getLogger(name), Written()
    before = logger.level
    logger.addHandler(handler)
    if level != logging.NOTSET:
        logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
