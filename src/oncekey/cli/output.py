"""What a command writes, and where: its result to stdout, everything else to stderr.

With --json stdout carries one JSON document and nothing else. Progress is shown on a terminal
only. Owns escaping: what comes out of a store or off a command line is data, never markup or
control characters. What must not be shown at all is hiding.py's.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncekey.cli.hiding import hidden

# Without a terminal there is no width to ask for.
_PIPE_WIDTH = 120


class Output:
    """The two channels of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = _console(stderr=False)
        self._aside = _console(stderr=True)

    def data(self, value: Any) -> None:
        """The result as one JSON document."""
        sys.stdout.write(json.dumps(value, default=_plain, indent=2) + "\n")
        sys.stdout.flush()

    def event(self, value: Any) -> None:
        """One of several results, as a JSON document on a line of its own."""
        sys.stdout.write(json.dumps(value, default=_plain) + "\n")
        sys.stdout.flush()

    def line(self, text: str) -> None:
        """One line of the result for people, never wrapped."""
        self.console.print(Text(printable(text)), soft_wrap=True)

    def text(self, text: str) -> None:
        """A result that is a file of its own, exactly as it is."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def facts(self, rows: Mapping[str, str]) -> None:
        """Names and values, one per line; a long value is wrapped on a terminal only."""
        if not self.console.is_terminal:
            width = max(map(len, rows))
            for name, value in rows.items():
                self.line(f"{name:<{width}}  {value}")
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows.items():
            grid.add_row(Text(printable(name)), Text(printable(value)))
        self.console.print(grid)

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that says what is being done; gives the function that changes it."""
        if not self._aside.is_terminal:
            yield lambda text: None
            return
        with self._aside.status(Text(text)) as status:
            yield lambda text: status.update(Text(printable(text)))


def survive_any_encoding() -> None:
    """Spell out what a terminal's encoding cannot say instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def error_line(text: str) -> None:
    """One line on stderr, whatever is in it."""
    one_line = " ".join(hidden(text).split())
    print(f"oncekey: {printable(one_line)}", file=sys.stderr)


def printable(text: str) -> str:
    """Text without control characters: those are spelt out, so no terminal obeys them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    return value.isoformat() if isinstance(value, datetime) else repr(value)
