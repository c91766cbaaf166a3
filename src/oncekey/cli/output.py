"""What a command gives back: its result on stdout, everything else on stderr, and an exit code.

With --json stdout carries one JSON document and nothing else. Progress is shown on a terminal only.
Text from a store or a command line is escaped: it is data, never markup or control characters.
password_redaction.py removes passwords. rich is imported where something is shown to people: JSON
and errors do without, and start faster.
"""

from __future__ import annotations

import enum
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oncekey.cli.password_redaction import redact_remembered

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# Without a terminal there is no width to ask for.
_PIPE_WIDTH = 120


class ExitCode(enum.IntEnum):
    """The exit code of one command. Scripts rely on the numbers: add codes, never change one."""

    OK = 0
    #: It was tried and did not work: the store did not answer, the demo found a broken promise.
    FAILED = 1
    #: The command could not be tried as it was written: an option, a URL, a missing file.
    USAGE = 2
    #: The store has no such key.
    NOT_FOUND = 3
    #: `doctor`: something is broken; with --strict also for a warning.
    #: `verify`: a guarantee is violated; with --strict also if one is not observable.
    UNHEALTHY = 4
    #: `resolve`, `release`: the key changed after it was shown, and was left as it is.
    CHANGED = 5
    #: Ctrl-C, as shells spell it (128 + SIGINT).
    INTERRUPTED = 130


class UsageProblem(Exception):
    """The command cannot be run as it was written; the text says why. Exit code 2."""


class Output:
    """The stdout and stderr of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console:
        return _console(stderr=False)

    @cached_property
    def _stderr(self) -> Console:
        return _console(stderr=True)

    def data(self, value: Any) -> None:
        """Writes the result as one JSON document."""
        sys.stdout.write(json.dumps(value, default=_plain, indent=2) + "\n")
        sys.stdout.flush()

    def event(self, value: Any) -> None:
        """Writes one of several results, as a JSON document on one line."""
        sys.stdout.write(json.dumps(value, default=_plain) + "\n")
        sys.stdout.flush()

    def line(self, text: str, style: str = "") -> None:
        """Writes one line of the result for people, never wrapped."""
        self.console.print(_text(printable(text), style), soft_wrap=True)

    def line_above(self, text: str, style: str = "") -> None:
        """Writes one line of the result while progress is shown below it on the same terminal."""
        if self.console.is_terminal and self._stderr.is_terminal:
            self._stderr.print(_text(printable(text), style), soft_wrap=True)
        else:
            self.line(text, style)

    @property
    def shows_progress(self) -> bool:
        """True if there is a terminal for it."""
        return self._stderr.is_terminal

    def text(self, text: str) -> None:
        """Writes a result that is a whole file, unchanged."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def rows(self, rows: Mapping[str, str]) -> None:
        """Writes names and values, one per line; long values are wrapped on a terminal only."""
        if not self.console.is_terminal:
            width = max(map(len, rows))
            for name, value in rows.items():
                self.line(f"{name:<{width}}  {value}")
            return
        from rich.table import Table

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows.items():
            grid.add_row(_text(printable(name)), _text(printable(value)))
        self.console.print(grid)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
    ) -> None:
        """Writes a table; in a pipe as aligned columns, never cut."""
        if self.console.is_terminal:
            self.console.print(rich_table(columns, rows, styles))
            return
        cells = [[printable(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            padded = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            self.line("  ".join(padded).rstrip())

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows a line that says what is being done; gives the function that changes it."""
        if not self._stderr.is_terminal:
            yield lambda text: None
            return
        with self._stderr.status(_text(text)) as status:
            yield lambda text: status.update(_text(printable(text)))


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> RenderableType:
    """A table for a terminal; a cell that is in `styles` has that style."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    for row in rows:
        table.add_row(*(_text(printable(cell), styles.get(cell, "")) for cell in row))
    return table


def survive_any_encoding() -> None:
    """Makes characters that the terminal's encoding lacks appear escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def error_line(text: str) -> None:
    """Prints one line to stderr, escaped and without passwords."""
    one_line = " ".join(redact_remembered(text).split())
    print(f"oncekey: {printable(one_line)}", file=sys.stderr)


def printable(text: str) -> str:
    """The text with control characters escaped, so that no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def utc(at: datetime) -> str:
    """A time as people read it, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def counted(count: int, noun: str) -> str:
    """How many there are of what the noun names, with its plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _plain(value: Any) -> Any:
    """The JSON form of a value that JSON does not know."""
    return value.isoformat() if isinstance(value, datetime) else repr(value)
