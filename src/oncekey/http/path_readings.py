"""Lists the readings of a request's path that a router may take.

Servers hand over what the client wrote, and routers differ in what they make of it: some merge
slashes, some resolve dots, some take a whole URL for its path, and a pattern that ends in `$` takes
one more line break. A rule that saw only the text would be bypassed by `//pay`. So a rule is tried
on every reading, and a request is guarded if any of them fits. Owns these readings. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlparse

_SLASHES = re.compile(r"//+")
_ESCAPED_SLASH = re.compile(rb"%2[Ff]")


def is_plain(path: str) -> bool:
    """Whether there is one reading, as of nearly all paths: no step below would change it."""
    return (
        path[:1] == "/"
        and "//" not in path
        and "/." not in path
        and "%" not in path
        and path[-1:] != "\n"
    )


def readings(path: str) -> tuple[str, ...]:
    """The path, and whatever else a router may take it for."""
    if is_plain(path):
        return (path,)
    found = dict.fromkeys([path])
    for step in (_without_origin, _without_line_end, unquote, _rooted, _merged, _resolved):
        found.update(dict.fromkeys([step(one) for one in found]))
    return tuple(found)


def decoded_segments(raw_path: bytes) -> str:
    """A path that was split into segments before it was decoded: `%2F` is no slash in it."""
    kept = _ESCAPED_SLASH.sub(b"%252F", raw_path.partition(b"?")[0])
    return unquote(kept.decode("latin-1"))


def without_root_path(path: str, root: str) -> str:
    """The path as the app's own routes see it: without what it is mounted under."""
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


def app_path(scope: Mapping[str, Any]) -> str:
    """The path of an ASGI scope as the app's own routes see it."""
    return without_root_path(scope["path"], scope.get("root_path", ""))


def app_paths(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """What the app's own routes may take the path of an ASGI scope for."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or b""
    if not root and b"%" not in raw:
        return (path,)
    read = [path, decoded_segments(raw)] if b"%" in raw else [path]  # some split before they decode
    if root:
        # Some heed a root path, some do not, and some take what follows it wherever it stands.
        read += [without_root_path(one, root) for one in read]
        read += [one.partition(root)[2] for one in read if root in one]
    return tuple(dict.fromkeys(read))


def _without_origin(path: str) -> str:
    """Of a request whose target is a whole URL; its parameters go with the rest, as some have
    it."""
    if path.startswith("/"):
        return path
    try:
        return urlparse(path).path
    except ValueError:  # no URL either
        return path


def _without_line_end(path: str) -> str:
    return path.removesuffix("\n")


def _rooted(path: str) -> str:
    return path if path.startswith("/") else "/" + path


def _merged(path: str) -> str:
    return _SLASHES.sub("/", path)


def _resolved(path: str) -> str:
    """Without `.` and `..`."""
    if "/." not in path:
        return path
    kept: list[str] = []
    parts = path.split("/")
    for part in parts:
        if part == "..":
            kept = kept[:-1] or [""]
        elif part != ".":
            kept.append(part)
    if parts[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept) or "/"
