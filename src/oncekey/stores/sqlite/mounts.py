"""On which file system a file is, from the kernel's list of mounts.

This module owns the parsing of that list and which file systems share files between hosts. It
decides nothing about a store.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

MOUNTS: Final = "/proc/self/mountinfo"
# Their files are on another host, or are shared with other hosts.
NETWORK: Final = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.glusterfs",
        "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf",
        "virtiofs", "vmhgfs", "fuse.vmhgfs-fuse", "fuse.mfs", "fuse.juicefs", "fuse.gcsfuse",
    )
)  # fmt: skip
IN_MEMORY: Final = frozenset(("ramfs", "tmpfs"))

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOUNT_POINT: Final = 4  # the field of a line, counted from 0


class FileSystem(NamedTuple):
    """The kind of a mounted file system, and where it is mounted."""

    kind: str
    mounted_at: str


def file_system_of(path: str, mounts: str) -> FileSystem | None:
    """The file system that has `path`, by the text of the list; None if no line fits."""
    found: FileSystem | None = None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) <= _MOUNT_POINT or not after.split():
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts at one point the later one hides the other.
        if is_above and (found is None or len(point) >= len(found.mounted_at)):
            found = FileSystem(after.split()[0], point)
    return found


def read_file_system(path: str) -> FileSystem | None:
    """The file system of a file on this host; None where the kernel has no such list."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError:
        return None
    return file_system_of(os.path.realpath(path), mounts)
