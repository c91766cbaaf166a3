"""SQL kept in files: queries by name, migrations by number.

A query file has one query under each `-- name: xyz` line. Migrations are files named
`0001_what_it_does.sql`, numbered from 1 without gaps.

Owns reading and splitting the files. Knows no engine and runs nothing.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)
_MIGRATION: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_COMPATIBLE: Final = re.compile(r"^-- compatible: (\d+)[ \t]*$", re.MULTILINE)


class Migration(NamedTuple):
    """One step of a schema. Releases that know the steps up to `compatible` work on it too;
    0 means that none does."""

    version: int
    name: str
    sql: str
    compatible: int = 0


def load_queries(package: str, path: str) -> dict[str, str]:
    """The queries of one file of a package, by name."""
    return parse_queries(files(package).joinpath(path).read_text("utf-8"))


def parse_queries(text: str) -> dict[str, str]:
    """Queries by name; comments and the closing semicolon are left to the file."""
    _, *rest = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        if name in queries:
            raise ValueError(f"two queries are named {name}")
        lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
        queries[name] = "\n".join(lines).strip().removesuffix(";")
    return queries


def load_migrations(package: str, *folders: str) -> tuple[Migration, ...]:
    """The migrations in some folders of a package, in order."""
    found = []
    for file in (file for folder in folders for file in files(package).joinpath(folder).iterdir()):
        match = _MIGRATION.fullmatch(file.name)
        if match:
            found.append(make_migration(int(match[1]), match[2], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {folders} are not numbered 1 to {len(found)}")
    return tuple(found)


def make_migration(version: int, name: str, sql: str) -> Migration:
    """A line `-- compatible: 3` in it says which older schema's releases it does not break."""
    told = _COMPATIBLE.search(sql)
    return Migration(version, name, sql, int(told[1]) if told else 0)
