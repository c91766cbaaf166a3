"""The command's exit codes. Scripts rely on the numbers: add codes, never change one."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit code of one `oncekey` command."""

    OK = 0
    #: It was tried and did not work: the store did not answer, the demo found a broken promise.
    FAILED = 1
    #: The command could not be tried as it was written: an option, a URL, a missing file.
    USAGE = 2
    #: The store has no such key.
    NOT_FOUND = 3
    #: `doctor`: something is broken; with --strict also for a warning.
    #: `verify`: a guarantee is violated; with --strict also if one is not observable.
    UNHEALTHY = 4
    #: `resolve`, `release`: the key changed after it was shown, and was left as it is.
    CHANGED = 5
    #: Ctrl-C, as shells spell it (128 + SIGINT).
    INTERRUPTED = 130
