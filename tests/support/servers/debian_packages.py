"""Programs from Debian's archive without root: they are downloaded and unpacked into a cache.

This module owns the cache folder and calls `apt-get` and `dpkg`. It never installs anything, and it
must not know what the programs are for.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.processes import ServerMissing, clean_environment
from tests.support.servers.run_folders import note_elsewhere, run_folders

_NETWORK_OPTIONS = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]
_SECONDS = 180


def cache_folder() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "oncekey"


def fetch(
    package: str,
    cache: Path | None = None,
    *,
    suite: str | None = None,
    companions: Sequence[str] = (),
) -> Path:
    """Return the folder with the unpacked package and those of its libraries that are missing.

    `suite` is another suite of the machine's own mirror, such as that of a newer release;
    `companions` are packages that are unpacked beside it, whether they are installed or not.
    """
    folder = (cache or cache_folder()) / (f"{package}-{suite}" if suite else package)
    if folder.exists():
        return folder
    how_to_get = f"install Debian's package {package}"
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise ServerMissing(package, how_to_get)
    with work_folder(folder) as work:
        try:
            _unpack_all([package, *companions], work, suite)
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerMissing(package, f"{how_to_get} ({_reason(error)})") from error
        try:
            (work / "root").rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another run was faster, with the same content
                raise
    return folder


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Make a folder beside one that is to be, and remove it, also if the run is killed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-")
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that you may write to"
        raise ServerMissing(folder.name, f"{remedy} ({error})") from error
    with work as name:
        note_elsewhere(Path(name))
        yield Path(name)


def libraries(folder: Path) -> dict[str, str]:
    """Return the environment in which programs of an unpacked package find its libraries."""
    parents = {str(path.parent) for path in folder.glob("**/lib/**/*.so.*")}
    return {"LD_LIBRARY_PATH": ":".join(sorted(parents))}


def _unpack_all(packages: Sequence[str], work: Path, suite: str | None) -> None:
    wanted, done = set(packages), set[str]()
    while wanted:
        done |= wanted
        needs = set[str]()
        for file in _download(sorted(wanted), work, suite):
            _run(["dpkg", "-x", file, work / "root"], work)
            needs.update(_library_names(_run(["dpkg", "--field", file, "Depends"], work)))
        wanted = needs - done


def _library_names(depends: str) -> list[str]:
    """Return the libraries in a `Depends` field that are not installed on this machine."""
    names = re.findall(r"(?:^|,)\s*(lib[^\s,:(|]+)", depends)
    return [name for name in names if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return query.stdout.endswith(" installed")


def _download(packages: Sequence[str], work: Path, suite: str | None) -> list[Path]:
    into = Path(tempfile.mkdtemp(dir=work, prefix="download-"))
    try:
        if suite is not None:
            raise subprocess.SubprocessError("the machine's lists are of another suite")
        _run(["apt-get", *_NETWORK_OPTIONS, "download", *packages], into)
    except subprocess.SubprocessError:
        # A slim container has no package lists.
        options = _private_lists(suite)
        _run(["apt-get", *_NETWORK_OPTIONS, *options, "download", *packages], into)
    return sorted(into.glob("*.deb"))


def _private_lists(suite: str | None) -> list[str]:
    """Fetch lists of packages for this run, once for all packages of a suite; return the options
    with which `apt-get` reads them."""
    home = run_folders().disk / f"apt-{suite or 'own'}"
    lists, cache = home / "lists", home / "cache"
    folders = {"State::lists": lists, "Cache": cache, "Cache::archives": cache / "archives"}
    sources = home / "sources.list"
    if suite is not None:
        folders |= {"Etc::sourcelist": sources, "Etc::sourceparts": Path(os.devnull)}
    options = ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"]
    for option, path in folders.items():
        options += ["-o", f"Dir::{option}={path}"]
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "fetched").exists():
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
            if suite is not None:
                sources.write_text(f"deb {_mirror(home)} {suite} main\n", encoding="utf-8")
            _run(["apt-get", *_NETWORK_OPTIONS, *options, "update"], home)
            (home / "fetched").touch()
    return options


def _mirror(folder: Path) -> str:
    """Return the address from which this machine has its own release."""
    names = _run(["sh", "-c", '. /etc/os-release && echo "$ID $VERSION_CODENAME"'], folder).split()
    targets = _run(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"], folder)
    for line in targets.splitlines():
        release, _, address = line.partition(" ")
        if names[:1] == ["debian"] and release == names[-1]:
            return address
    raise OSError("this machine has no mirror of Debian")


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
    output = getattr(error, "stderr", None) or str(error)
    return str(output).strip().splitlines()[-1]
