"""Imports an object of the user's code, named on the command line as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from oncekey.cli.open_store import UsageProblem


def import_object(name: str) -> Any:
    """The object; modules in the current folder are found too, as with `python -m`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageProblem(f"{name!r} is not MODULE:NAME, such as shop.main:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may raise anything
        reason = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise UsageProblem(f"{name} cannot be imported: {reason}") from error
    return found
