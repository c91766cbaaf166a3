"""Opens stores for commands.

`show` and `sweep` must not create a store, put tables into a database that is not oncekey's, or
upgrade one: they inspect it first, read-only (oncekey.stores.inspection). Secrets are read from the
environment, so that none stands on a command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from oncekey.cli.output import UsageProblem, error_line
from oncekey.cli.signals import stop_on_signal
from oncekey.core.duration import human
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.keys.administration import note_of_move, run_plan
from oncekey.engine.store_urls import blocking_store, store_module
from oncekey.stores.inspection import Inspection


def open_store(url: str) -> Store:
    """The store behind a URL, without an engine: `Once` would bind a new store to its secret."""
    refuse_memory(url)
    return blocking_store(url)


def warn_of_move(store: Store) -> None:
    """Say on stderr if keys are being moved to or from this store, or were: then it does not show
    what counts."""
    note = run_plan(store, note_of_move())
    if note:
        error_line(f"WARNING: {note}")


def store_function(url: str, name: str) -> Callable[[str], Any]:
    """A function that a store's package offers to commands; raises UsageProblem if it does not."""
    refuse_memory(url)
    function: Callable[[str], Any] | None = getattr(store_module(url), name, None)
    if function is None:
        scheme = url.partition("://")[0]
        raise UsageProblem(f"the store of {scheme}:// does not offer this ({name})")
    return function


def inspect(url: str) -> Inspection:
    """Inspects the store behind a URL, read-only."""
    found: Inspection = store_function(url, "inspect")(url)
    return found


def has_records(url: str) -> bool:
    """Whether the store has records. Raises UsageProblem if there is no oncekey store, or if
    opening it would change its tables; True for stores that cannot be inspected."""
    refuse_memory(url)
    if not hasattr(store_module(url), "inspect"):
        return True
    found = inspect(url)
    if not found.exists:
        raise UsageProblem(f"{found.name}: {found.absence}")
    if found.missing:
        raise UsageProblem(
            f"{found.name}: its tables are of an older release and lack "
            f"{', '.join(found.missing)}; bring them up to date first: oncekey migrate"
        )
    return found.has_records


def has_records_in_time(url: str, seconds: float) -> bool | None:
    """The same for a command that stays: while the store is away it says so, and asks again after
    so many seconds. None if a signal came first."""
    with stop_on_signal() as stop:
        while not stop.requested:
            try:
                return has_records(url)
            except StoreUnavailable as error:
                error_line(f"{error}; it is tried again in {human(round(seconds * 1_000_000))}")
            stop.wait(seconds)
    return None


def secret_from(name: str | None) -> str | None:
    """The secret in the environment variable `name`; its value is never shown."""
    if name is None:
        return None
    secret = os.environ.get(name)
    if not secret:
        raise UsageProblem(f"--secret-env: the environment variable {name} is not set")
    return secret


def refuse_memory(url: str) -> None:
    """Raises UsageProblem for a store that only the process has that made it."""
    if url.startswith("memory:"):
        raise UsageProblem("memory:// lives and ends within one process; no command can see it")
