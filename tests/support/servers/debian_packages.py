"""Programs from Debian's archive without being root: download, unpack into a cache, run there.

Owns the cache folder and the talk with `apt-get` and `dpkg`. It must not know what the programs
are for, and it never installs anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.processes import ServerMissing, clean_environment

_PATIENCE = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]
_SECONDS = 180


def cache_folder() -> Path:
    at = os.environ.get("XDG_CACHE_HOME")
    return (Path(at) if at else Path.home() / ".cache") / "oncekey"


def fetch(package: str, cache: Path | None = None) -> Path:
    """The folder with the unpacked package and the libraries it needs that are not installed."""
    folder = (cache or cache_folder()) / package
    if folder.exists():
        return folder
    how_to_get = f"install Debian's package {package}"
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise ServerMissing(package, how_to_get)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{package}-") as name:
        try:
            _unpack_all(package, Path(name))
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerMissing(package, f"{how_to_get} ({_reason(error)})") from error
        try:
            (Path(name) / "root").rename(folder)
        except OSError:
            if not folder.exists():  # else another run was faster, and it has the same
                raise
    return folder


def libraries(folder: Path) -> dict[str, str]:
    """The environment in which programs of an unpacked package find its libraries."""
    parents = {str(path.parent) for path in folder.glob("**/lib/**/*.so.*")}
    return {"LD_LIBRARY_PATH": ":".join(sorted(parents))}


def _unpack_all(package: str, work: Path) -> None:
    wanted, done = [package], set[str]()
    while wanted:
        name = wanted.pop()
        done.add(name)
        file = _download(name, work)
        _run(["dpkg", "-x", file, work / "root"], work)
        needs = _run(["dpkg", "--field", file, "Depends"], work)
        wanted += [need for need in _library_names(needs) if need not in done | set(wanted)]


def _library_names(depends: str) -> list[str]:
    """Of a `Depends` field: the libraries that are not installed here."""
    names = re.findall(r"(?:^|,)\s*(lib[^\s,:(|]+)", depends)
    return [name for name in names if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    said = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.endswith(" installed")


def _download(package: str, work: Path) -> Path:
    into = work / "download" / package
    into.mkdir(parents=True)
    try:
        _run(["apt-get", *_PATIENCE, "download", package], into)
    except subprocess.SubprocessError:
        # The machine has no lists of packages, as in a slim container: get lists of our own.
        _run(["apt-get", *_PATIENCE, *_own_lists(work), "download", package], into)
    return next(into.glob("*.deb"))


def _own_lists(work: Path) -> list[str]:
    lists, cache = work / "lists", work / "cache"
    places = {"State::lists": lists, "Cache": cache, "Cache::archives": cache / "archives"}
    options = ["-o", "APT::Sandbox::User=root"]
    for place, path in places.items():
        options += ["-o", f"Dir::{place}={path}"]
    if not lists.exists():
        (lists / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        _run(["apt-get", *_PATIENCE, *options, "update"], work)
    return options


def _run(command: Sequence[str | Path], directory: Path) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_SECONDS,
    )
    return done.stdout


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return str(said).strip().splitlines()[-1]
