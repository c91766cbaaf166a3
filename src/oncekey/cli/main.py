"""The entry point of the `oncekey` command.

Owns what must work before anything else is there: without the extra packages it says how to get
them. The commands are in app.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oncekey.cli.exits import Exit

_EXTRA = frozenset({"click", "rich"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        from oncekey.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f'the command needs {error.name}: pip install "oncekey[cli]"', file=sys.stderr)
        return Exit.USAGE
    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
