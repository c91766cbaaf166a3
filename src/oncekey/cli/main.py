"""The entry point of the `oncekey` command.

It works without the packages of `oncekey[cli]` and then says how to install them. The commands are
in app.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oncekey.cli.exit_codes import ExitCode

_EXTRA = frozenset({"click", "rich"})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        from oncekey.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f'the command needs {error.name}: pip install "oncekey[cli]"', file=sys.stderr)
        return ExitCode.USAGE
    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
