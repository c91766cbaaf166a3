"""What SQLite can promise about a commit, by its settings and by the version of its library.

This module owns the text of the guarantee, and the one warning per process about library versions
that can damage a file that several processes write. Without a second process there is no warning.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee, Level
from oncekey.stores.sqlite.other_processes import is_open_elsewhere

WAL_RESET_BUG: Final = "wal-reset-bug"
SYNCHRONOUS: Final = ("full", "extra", "normal", "off")
_MODES: Final = ("off", "normal", "full", "extra")  # by SQLite's number

_log = logging.getLogger("oncekey.sqlite")
_warned = False

_LINK: Final = "https://sqlite.org/wal.html#walresetbug"
_FIXED: Final = (3, 51, 3)
_FIXED_IN_BRANCH: Final = {(3, 50): 7, (3, 44): 6}

_BUG = (
    "SQLite {version} has the WAL-reset bug: in rare cases two processes that write and checkpoint "
    "at once damage the file. Use 3.51.3 or newer (3.50.7 and 3.44.6 are mended too), or keep to "
    "one process"
)


def has_wal_reset_bug(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """True if this version may damage a file that several connections write (3.7.0 to 3.51.2)."""
    fixed = _FIXED_IN_BRANCH.get((version[0], version[1]))
    if fixed is not None:
        return version[2] < fixed
    return version < _FIXED


def guarantee(
    synchronous: str, version: tuple[int, ...] = sqlite3.sqlite_version_info
) -> Guarantee:
    if synchronous in ("full", "extra"):
        level = Level.TRANSACTIONAL
        reason = f"every commit is on disk before it is acknowledged (synchronous={synchronous})"
    else:
        level = Level.BEST_EFFORT
        reason = (
            f"with synchronous={synchronous} a power loss can take acknowledged claims back; "
            "use synchronous=full"
        )
    if has_wal_reset_bug(version):
        reason = f"{reason}. {_bug(version)}"
    return Guarantee(level, reason)


def connection_guarantee(store: Guarantee, synchronous: int) -> Guarantee | None:
    """What the commits of a caller's connection promise, by its own PRAGMA synchronous. None if
    that is no less than the store does."""
    mode = _MODES[synchronous] if 0 <= synchronous < len(_MODES) else "full"
    if mode not in ("off", "normal") or store.level is Level.BEST_EFFORT:
        return None
    return Guarantee(
        Level.BEST_EFFORT,
        f"that connection has synchronous={mode}, so a power loss can take back what it commits. "
        'Execute "PRAGMA synchronous=FULL" on each connection when it is opened, since SQLite does '
        "not change it in a transaction (docs/how-to/transactions.md#your-connections-synchronous)",
    )


def is_acknowledged(acknowledge: str | None) -> bool:
    """True if the user acknowledged the bug. ConfigurationError for an unknown name."""
    if acknowledge not in (None, WAL_RESET_BUG):
        raise ConfigurationError(
            f"acknowledge={acknowledge!r} is not known; there is {WAL_RESET_BUG!r}"
        )
    return acknowledge is not None


def must_check() -> bool:
    """True if a warning is due as soon as another process opens the file."""
    return not _warned and has_wal_reset_bug()


def warn_if_shared(path: str) -> None:
    """Log, once per process, that this version of SQLite may damage the file, if another process
    has it open too or if that cannot be found out."""
    global _warned
    shared = is_open_elsewhere(path)
    if _warned or shared is False:
        return
    _warned = True
    _log.warning(
        "oncekey: %s %s open in more than one process. %s. See %s; a patched build cannot be told "
        "apart. Where you know of it, add ?acknowledge=%s to the store's URL "
        "(docs/reference/limits.md#sqlite)",
        path,
        "is" if shared else "may be",
        _bug(sqlite3.sqlite_version_info),
        _LINK,
        WAL_RESET_BUG,
    )


def _bug(version: tuple[int, ...]) -> str:
    return _BUG.format(version=".".join(map(str, version)))
