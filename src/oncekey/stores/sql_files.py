"""What a SQL store keeps in files: its queries, and its migrations, which are planned here.

A query stands under a line `-- name: xyz`. Migrations are files named `0001_what_it_does.sql`,
numbered from 1 without gaps. The plan is pure: a schema only moves forward and its state is never
guessed. The store reads which migrations were applied and runs the planned ones, under a lock of
its own. This module knows no database and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Final, NamedTuple

from oncekey.core.errors import ConfigurationError

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


_FILE_NAME: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_COMPATIBLE: Final = re.compile(r"^-- compatible: (\d+)[ \t]*$", re.MULTILINE)


class Migration(NamedTuple):
    """One numbered change of a schema. Releases that know the schema up to version `compatible`
    also work with it; 0 means that no older release does."""

    version: int
    name: str
    sql: str
    compatible: int = 0


def load_migrations(package: str, *folders: str) -> tuple[Migration, ...]:
    """The migrations in some folders of a package, in order."""
    found = []
    for file in (file for folder in folders for file in files(package).joinpath(folder).iterdir()):
        match = _FILE_NAME.fullmatch(file.name)
        if match:
            found.append(make_migration(int(match[1]), match[2], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {folders} are not numbered 1 to {len(found)}")
    return tuple(found)


def make_migration(version: int, name: str, sql: str) -> Migration:
    """A migration from its text. A line `-- compatible: 3` in it names the oldest schema version
    whose releases still work."""
    compatible = _COMPATIBLE.search(sql)
    return Migration(version, name, sql, int(compatible[1]) if compatible else 0)


def plan(
    applied: Sequence[int], known: Sequence[Migration], compatible: int = 0
) -> list[Migration]:
    """The migrations to run, in order. ConfigurationError if `applied` does not fit `known`.

    `compatible` comes from applied migrations that are newer than `known`: releases that know the
    schema up to that version keep working, so that hosts can be upgraded one after the other.
    """
    versions = [migration.version for migration in known]
    done = sorted(applied)
    if versions and done and done[-1] > versions[-1] and not 0 < compatible <= versions[-1]:
        raise ConfigurationError(
            f"the database has oncekey's schema {done[-1]}, this release knows up to "
            f"{versions[-1]}; install the release that wrote it, or a newer one"
        )
    if done[: len(versions)] != versions[: len(done)]:
        raise ConfigurationError(
            f"the database lists the schema steps {done}, this release expects "
            f"{versions[: len(done)]}; its table of migrations was changed by hand, restore it "
            "from a backup"
        )
    return list(known[len(done) :])
