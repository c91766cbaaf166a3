"""Lists the paths that a router may take a request's path for, its readings.

Servers pass on what the client wrote, and routers interpret it differently: some merge slashes,
some resolve dots, some accept a whole URL, and a pattern that ends in `$` also matches before a
final line break. A rule that was matched against the text only could be bypassed by `//pay`.
Therefore a request is guarded if a rule matches any reading of its path. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlparse

_SLASHES = re.compile(r"//+")
_PERCENT = ord("%")  # a byte is found faster than bytes
_ESCAPED_SLASH = re.compile(rb"%2[Ff]")


def is_plain(path: str) -> bool:
    """Whether a path has only one reading, as nearly all have: no step below would change it."""
    return (
        path[:1] == "/"
        and "//" not in path
        and "/." not in path
        and "%" not in path
        and path[-1:] != "\n"
    )


def readings(path: str) -> tuple[str, ...]:
    """The path, and every other path that a router may take it for."""
    if is_plain(path):
        return (path,)
    paths = dict.fromkeys([path])
    for step in (_without_origin, _without_line_end, unquote, _rooted, _merged, _resolved):
        paths.update(dict.fromkeys([step(one) for one in paths]))
    return tuple(paths)


def decoded_segments(raw_path: bytes) -> str:
    """The path as routers see it that decode each segment by itself: `%2F` is no slash in it."""
    escaped = _ESCAPED_SLASH.sub(b"%252F", raw_path.partition(b"?")[0])
    return unquote(escaped.decode("latin-1"))


def without_root_path(path: str, root: str) -> str:
    """The path as the app's own routes see it: without the prefix the app is mounted under."""
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


def app_path(scope: Mapping[str, Any]) -> str:
    """The path of an ASGI scope as the app's own routes see it."""
    return without_root_path(scope["path"], scope.get("root_path", ""))


def app_paths(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths that the app's own routes may take the path of an ASGI scope for."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or b""
    if not root and _PERCENT not in raw:
        return (path,)
    paths = [path, decoded_segments(raw)] if _PERCENT in raw else [path]
    if root:
        # Some frameworks remove the root path, some do not, and some search for it in the path.
        paths += [without_root_path(one, root) for one in paths]
        paths += [one.partition(root)[2] for one in paths if root in one]
    return tuple(dict.fromkeys(paths))


def _without_origin(path: str) -> str:
    """The path of a request whose target is a whole URL, without the URL's parameters."""
    if path.startswith("/"):
        return path
    try:
        return urlparse(path).path
    except ValueError:  # not a URL either
        return path


def _without_line_end(path: str) -> str:
    return path.removesuffix("\n")


def _rooted(path: str) -> str:
    return path if path.startswith("/") else "/" + path


def _merged(path: str) -> str:
    return _SLASHES.sub("/", path)


def _resolved(path: str) -> str:
    """The path with its `.` and `..` segments resolved."""
    if "/." not in path:
        return path
    kept: list[str] = []
    parts = path.split("/")
    for part in parts:
        if part == "..":
            del kept[-1:]  # and no copy of the rest, which a stranger makes long
            kept = kept or [""]
        elif part != ".":
            kept.append(part)
    if parts[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept) or "/"
