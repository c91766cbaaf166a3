"""Keeps passwords out of what a command prints, whoever quotes them.

Two nets: anything that looks like a password in a URL or a conninfo, and the very passwords that
came in on this command line, wherever a driver's message repeats them. Hiding too much does no
harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

HIDDEN = "***"

_NAMES = r"\w*(?:password|passwd|pwd|secret|token|scram_)\w*"
# Up to the last @ of the word: a password may hold anything.
_USER_PASSWORD = re.compile(r"(:/+[^\s:@/]*:)\S*@")
_NAMED_PASSWORD = re.compile(
    rf"((?:^|[?&\s'\"(,]){_NAMES}\s*=\s*)('(?:[^'\\]|\\.)*'?|[^&\s'\"]*)", re.IGNORECASE
)
# The same within one argument, where a password may even hold spaces.
_IN_ARGUMENT = re.compile(r":/+[^:@/]*:(.*)@", re.DOTALL)
# Shorter ones are in every other word. In a URL they are hidden all the same.
_LITERAL_MIN_CHARS = 4

_known: set[str] = set()


def remember(arguments: Iterable[str]) -> None:
    """The passwords in these arguments are not to be printed from now on."""
    for argument in arguments:
        found = [match[1] for match in _IN_ARGUMENT.finditer(argument)]
        found += [match[2].strip("'") for match in _NAMED_PASSWORD.finditer(argument)]
        for password in found:
            _known.update((password, unquote(password)))


def redacted(text: str) -> str:
    """Text in which no URL and no conninfo shows a password."""
    text = _USER_PASSWORD.sub(rf"\1{HIDDEN}@", text)
    return _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", text)


def hidden(text: str) -> str:
    """The same for text that others have worded: nor are the remembered passwords in it."""
    for password in sorted(_known, key=len, reverse=True):
        if len(password) >= _LITERAL_MIN_CHARS:
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", HIDDEN, text)
    return redacted(text)
