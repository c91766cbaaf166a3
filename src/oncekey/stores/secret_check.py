"""One secret per store, for its whole life (S8)."""

from __future__ import annotations

from oncekey.core.errors import ConfigurationError


def refuse_another_secret(remembered: bytes, given: bytes) -> None:
    """Raise where the check values differ: under two secrets no key would meet its record."""
    if remembered != given:
        raise ConfigurationError(
            "this store was first opened with another secret; with two secrets no key "
            "would meet its earlier record. Use the first secret, or an empty store"
        )
