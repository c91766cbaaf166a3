"""`python -m oncekey` is the `oncekey` command."""

from __future__ import annotations

import sys

from oncekey.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
