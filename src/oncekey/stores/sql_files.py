"""Queries kept in SQL files: each stands under a line `-- name: xyz`.

This module owns reading and splitting those files. It knows no database and runs nothing.
Migrations are in migrations.py.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


def load_queries(package: str, path: str) -> dict[str, str]:
    """The queries of one file of a package, by name."""
    return parse_queries(files(package).joinpath(path).read_text("utf-8"))


def parse_queries(text: str) -> dict[str, str]:
    """The queries in a text, by name, without comments and without the closing semicolon."""
    _, *rest = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        if name in queries:
            raise ValueError(f"two queries are named {name}")
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        queries[name] = "\n".join(lines).strip().removesuffix(";")
    return queries
