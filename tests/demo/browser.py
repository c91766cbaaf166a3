"""A headless Chromium for the tests of the demo's page: the machine's own, or Debian's package.

Finds the browser, and raises ServerMissing if there is none.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers import processes
from tests.support.servers.debian_packages import cache_folder, fetch, work_folder
from tests.support.servers.processes import ServerMissing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The program is in one of Debian's packages, its data files are in the other.
_PACKAGES = ("chromium", "chromium-common")
_WHOLE = "chromium-whole"


def program() -> Path | None:
    """The path of Chromium; None means the one that playwright has installed."""
    if importlib.util.find_spec("playwright") is None:
        raise ServerMissing("playwright", "pip install playwright")
    own = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if own is not None:
        return Path(own)
    if _playwrights_own():
        return None
    return _unpacked() / "usr/lib/chromium/chromium"


@contextmanager
def chromium(at: Path | None) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    # Chromium and its libraries keep settings and reports in the user's home.
    home = processes.scratch() / processes.fresh_name("chromium-home")
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment: dict[str, str | float | bool] = {**kept, "HOME": str(home)}
    if at is not None and cache_folder() in at.parents:
        environment["LD_LIBRARY_PATH"] = _libraries(cache_folder() / _WHOLE)
    with sync_playwright() as play:
        # In a container there is often only root, and Chromium has no sandbox for root.
        browser = play.chromium.launch(
            executable_path=at, env=environment, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


def _playwrights_own() -> bool:
    at = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(at) if at else Path.home() / ".cache" / "ms-playwright"
    return any(folder.glob("chromium*"))


def _unpacked() -> Path:
    """Unpacks both packages into one folder, because Chromium looks for its files beside itself."""
    whole = cache_folder() / _WHOLE
    parts = [fetch(package) for package in _PACKAGES]
    if whole.exists():
        return whole
    with work_folder(whole) as work:
        made = work / "root"
        for part in parts:
            _link(part, made)
        try:
            made.rename(whole)
        except OSError:
            if not whole.exists():  # otherwise another run was faster and unpacked the same
                raise
    return whole


def _link(part: Path, into: Path) -> None:
    for path in (part / "usr/lib").rglob("*"):
        target = into / path.relative_to(part)
        # Both packages need some of the same libraries.
        if (path.is_symlink() or path.is_file()) and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target, follow_symlinks=False)


def _libraries(folder: Path) -> str:
    return ":".join(sorted({str(path.parent) for path in folder.glob("usr/lib/**/*.so*")}))
