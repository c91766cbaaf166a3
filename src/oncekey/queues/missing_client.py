"""Says which package to install where the client of a broker is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncekey.core.errors import ConfigurationError


@contextmanager
def client_of(broker: str, *, extra: str) -> Iterator[None]:
    """Report a package that the block cannot import, with the pip line that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "oncekey").partition(".")[0] == "oncekey":
            raise  # a bug of this package, not a missing one
        raise ConfigurationError(
            f"{broker} needs {error.name}, which is not installed: pip install 'oncekey[{extra}]'"
        ) from error
