"""A disk that can be filled: a tmpfs of limited size, mounted in a namespace of the run's own.

No root is needed for that where the system lets users make namespaces: the run starts itself again
by `unshare`. Elsewhere a disk is a plain folder, and a server that meets a full disk is imitated by
a limit on the size of the files that its processes may write.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.servers import Postgres, ServerFailed

NAMESPACE_VARIABLE: Final = "CHAOS_NAMESPACE"
SIZE_MB: Final = 640
_FILE_MAX_BYTES: Final = 64 * 1024
_PIECES: Final = (16 * 2**20, 2**20, 4096)
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--mount")


def enter_namespace(module: str, arguments: Sequence[str]) -> None:
    """Start this program again in a namespace in which it may mount; return where that fails."""
    if os.environ.get(NAMESPACE_VARIABLE):
        return
    try:
        tried = subprocess.run(
            [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        )
    except OSError:
        return
    if tried.returncode:
        return
    environment = {**os.environ, NAMESPACE_VARIABLE: "1"}
    command = [*_UNSHARE, sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, environment)


class SmallDisk:
    """One disk, for one server's data."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_real = bool(os.environ.get(NAMESPACE_VARIABLE))
        path.mkdir(mode=0o777)
        path.chmod(0o777)
        if self.is_real:
            options = f"size={SIZE_MB}m,mode=777"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self, server: Postgres) -> None:
        """Leave no room for the server whose data is on this disk."""
        if not self.is_real:
            _limit_files(server, _FILE_MAX_BYTES)
            return
        size = 0
        with self._ballast.open("wb") as file:
            for piece in _PIECES:
                with suppress(OSError):  # there is no room for one more piece of this size
                    while size < SIZE_MB * 2**20:
                        os.posix_fallocate(file.fileno(), size, piece)
                        size += piece

    def free(self, server: Postgres) -> None:
        self._ballast.unlink(missing_ok=True)
        if not self.is_real:
            _limit_files(server, "unlimited")

    def close(self) -> None:
        if self.is_real:
            subprocess.run(["umount", "--lazy", self.path], check=False, capture_output=True)


def _limit_files(server: Postgres, limit: int | str) -> None:
    """Limit what each process of a server may write, and those that they start from now on."""
    for pid in server.pids():
        # It runs as the server's user, who may do this to its own processes.
        command = ["prlimit", f"--pid={pid}", f"--fsize={limit}:"]
        with suppress(ServerFailed):  # a session has ended meanwhile
            server.user.run(command, server.directory)
