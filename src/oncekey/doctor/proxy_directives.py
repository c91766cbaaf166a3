"""Reads directives from the configurations of proxies, also those that go over several lines.

It is tolerant: which format a text has is not asked, and each way of reading finds nothing in the
others. nginx ends a directive with a semicolon, YAML and JSON indent or bracket what belongs to a
key, HAProxy goes on after a backslash. It knows no directive by name, and follows no includes and
no anchors of YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_CONTINUED: Final = re.compile(r"\\[ \t]*$")
_SPACE: Final = re.compile(r"\s*")
_QUOTED: Final = r"\"(?:\\.|[^\"\\])*\"|'[^']*'"
_TOKEN: Final = re.compile(rf"{_QUOTED}|[\[\]{{}}]")
_SCALAR: Final = re.compile(rf"{_QUOTED}|[^,\]}}\n]*")
# What follows the name of an nginx directive, up to its semicolon or its block.
NGINX_REST: Final = r"((?:\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\$\{\w+\}|[^;{}])*)"


class Directive(NamedTuple):
    """One directive: the number of its first line, and its text."""

    number: int
    text: str

    @property
    def line(self) -> str:
        """Its text on one line."""
        return " ".join(self.text.split())


def without_comments(text: str) -> str:
    return "\n".join(_COMMENT.sub("", line) for line in text.splitlines())


def matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[Directive, re.Match[str]]]:
    """What matches, wherever it stands; a match may go over several lines."""
    number, seen = 1, 0
    for match in pattern.finditer(text):
        number += text.count("\n", seen, match.start())
        seen = match.start()
        yield Directive(number, match[0]), match


def joined_lines(text: str) -> Iterator[Directive]:
    """The lines, each with those that it goes on in after a backslash."""
    begun, parts = 1, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        parts.append(_CONTINUED.sub(" ", line))
        if not _CONTINUED.search(line):
            yield Directive(begun, "".join(parts))
            begun, parts = number + 1, []
    if parts:
        yield Directive(begun, "".join(parts))


def blocks(names: str, text: str) -> Iterator[Directive]:
    """The keys of YAML or JSON with one of these names (`a|b`), each with all that belongs to it:
    its value, the items of its list, its mapping."""
    key = re.compile(rf"(?<![\w.-])[\"']?(?:{names})[\"']?[ \t]*:(?=[\s\[{{\"'])[ \t]*")
    for directive, match in matches(key, text):
        yield directive._replace(text=match[0] + _value(text, match))


def _value(text: str, key: re.Match[str]) -> str:
    begin = _SPACE.match(text, key.end()).end()  # type: ignore[union-attr]
    if text[begin : begin + 1] in ("[", "{"):
        return text[key.end() : _closing(text, begin)]
    line_begin = text.rfind("\n", 0, key.start()) + 1
    is_among_others = text[line_begin : key.start()].strip(" \t-") != ""  # between brackets
    if is_among_others or text[key.end() : key.end() + 1] in ("'", '"'):
        return _SCALAR.match(text, begin)[0]  # type: ignore[index]
    return _indented(text, key.end(), key.start() - line_begin)


def _closing(text: str, begin: int) -> int:
    """The end of what the bracket at `begin` opens."""
    depth = 0
    for token in _TOKEN.finditer(text, begin):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if not depth:
            return token.end()
    return len(text)


def _indented(text: str, begin: int, column: int) -> str:
    """The rest of the line, and the lines after it that belong to the key in this column."""
    end = _line_end(text, begin)
    while end < len(text):
        following = _line_end(text, end + 1)
        line = text[end + 1 : following]
        content = line.lstrip()
        indent = len(line) - len(content)
        if content and indent <= column and not (indent == column and content.startswith("- ")):
            break
        end = following
    return text[begin:end]


def _line_end(text: str, begin: int) -> int:
    end = text.find("\n", begin)
    return end if end >= 0 else len(text)
