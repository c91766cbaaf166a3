"""The passwords that a command must not print, and the functions that remove them from a text.

They remove (1) whatever looks like a password in a URL or a conninfo, and (2) the passwords that
were given on this command line, wherever a driver's message repeats them. Removing too much does no
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
# Shorter ones occur in ordinary words. In a URL they are removed all the same.
_LITERAL_MIN_CHARS = 4

# moving://OLD,NEW has two URLs, each with a password of its own.
_NEXT_URL = re.compile(r"(?<=moving)://|,(?=[a-z][a-z0-9+.-]*://)")

_known: set[str] = set()


def remember_passwords(arguments: Iterable[str]) -> None:
    """Remembers the passwords in these arguments, for `redact_remembered`."""
    for argument in (part for text in arguments for part in _urls_in(text)):
        found = [match[1] for match in _IN_ARGUMENT.finditer(argument)]
        found += [match[2].strip("'") for match in _NAMED_PASSWORD.finditer(argument)]
        for password in found:
            _known.update((password, unquote(password)))


def remember_secret(text: str) -> None:
    """Remembers a secret of another kind, such as a token, for `redact_remembered`."""
    _known.add(text)


def _urls_in(text: str) -> list[str]:
    return _NEXT_URL.split(text) if text.startswith("moving://") else [text]


def redact_url(text: str) -> str:
    """The text without the passwords in its URLs and conninfos."""
    scheme, *urls = _urls_in(text)
    if urls:
        return f"{scheme}://{','.join(map(redact_url, urls))}"
    text = _USER_PASSWORD.sub(rf"\1{HIDDEN}@", text)
    return _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", text)


def redact_remembered(text: str) -> str:
    """The text of a driver or library without passwords, the remembered ones included."""
    for password in sorted(_known, key=len, reverse=True):
        if len(password) >= _LITERAL_MIN_CHARS:
            text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", HIDDEN, text)
    return redact_url(text)
