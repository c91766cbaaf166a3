"""The Lua scripts of a stream's consumers, read from their files.

A script is one step for the server: it is done whole or not at all, and the append-only file and
the replicas have it whole or not at all. Each is common.lua and then its own file.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Final, NamedTuple

NAMES: Final = ("open", "take", "settle", "extend", "tidy", "leave", "redrive")


class Script(NamedTuple):
    """A script's text, and its digest, by which it is called."""

    text: str
    digest: str


@functools.cache
def script(name: str) -> Script:
    """The script of one of NAMES."""
    folder = resources.files(__package__) / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name)]
    text = "\n".join(parts)
    # The server names scripts by SHA-1; nothing secret depends on it.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
