"""An object of the user's code, named on the command line as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from oncekey.cli.opening import UsageProblem


def imported(name: str) -> Any:
    """Imported from the current folder too, as `python -m` does."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageProblem(f"{name!r} is not MODULE:NAME, such as shop.main:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module raises: it is not ours
        said = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise UsageProblem(f"{name} cannot be imported: {said}") from error
    return found
