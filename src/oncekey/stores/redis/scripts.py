"""The store's Lua scripts: read from their files, and named by the digest that the server knows.

Each script is its own first line (`#!lua` and its flags), then what all of them share, then the
rest of its file. This module knows no connection.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Final, NamedTuple

NAMES: Final = (
    "claim", "finish", "renew", "look", "replace", "add", "sweep", "sweep_history", "range",
    "heads", "tags", "measure", "history", "archive", "elect", "bind",
    "probe", "sightings", "remember", "forget", "touch",
)  # fmt: skip
# These change nothing, so that a call without a reply has had no effect.
READS: Final = frozenset(
    ("look", "range", "heads", "tags", "measure", "history", "probe", "sightings")
)
# These remove garbage, so they have the functions for it.
COLLECTORS: Final = frozenset(("claim", "sweep"))
# These have the text of another one, and are refused where the server's memory is full.
WITHIN_MEMORY: Final = {"add": "replace"}
# The indexes that a script uses beside records, with which it must be on one node.
INDEXES: Final = {
    "claim": ("claims", "open", "due", "floor"),
    "finish": ("open",),
    "look": ("claims", "floor"),
    "archive": ("past",),
    "replace": ("claims", "open", "due", "past"),
    "add": ("claims", "open", "due", "past"),
    "sweep": ("claims", "open", "due", "floor"),
    "sweep_history": ("past",),
}
# These may move a version of a record to its key's archive.
ARCHIVES: Final = frozenset(("replace", "add", "archive"))


class Script(NamedTuple):
    """A script's text, and its digest, by which it is called."""

    text: bytes
    digest: bytes


@functools.cache
def scripts() -> dict[str, Script]:
    """All scripts by name."""
    folder = resources.files(__package__) / "lua"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    garbage = (folder / "garbage.lua").read_text(encoding="utf-8")
    found = {}
    for name in NAMES:
        file = folder / f"{WITHIN_MEMORY.get(name, name)}.lua"
        first, rest = file.read_text(encoding="utf-8").split("\n", 1)
        if name in WITHIN_MEMORY:
            first = "#!lua"
        shared = common + garbage if name in COLLECTORS else common
        text = f"{first}\n{shared}{rest}".encode()
        # The server names scripts by SHA-1; nothing secret depends on it.
        found[name] = Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
    return found
