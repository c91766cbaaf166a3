"""The entry point of the `oncekey` command.

It works without the packages of `oncekey[cli]` and then says how to install them. The commands are
in command_group.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from oncekey.cli.output import ExitCode

_EXTRA = ("click", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for package in _EXTRA:
        # Asked first: what a command prints imports rich, and by then it has done its work.
        if find_spec(package) is None:
            print(f'the command needs {package}: pip install "oncekey[cli]"', file=sys.stderr)
            return ExitCode.USAGE
    from oncekey.cli.command_group import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
