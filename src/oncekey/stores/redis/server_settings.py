"""Reads what the servers say of themselves, beside other calls.

This module owns the commands and turns their replies into a durability.Server. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.redis import durability
from oncekey.stores.redis.calls import EVERY_NODE, Answer, Call

# What is read of every node. CONFIG may be forbidden; then its answer is an error.
SETTINGS_CALLS: Final = (
    Call("", EVERY_NODE, (), ("INFO", *durability.INFO_SECTIONS)),
    Call("", EVERY_NODE, (), ("CONFIG", "GET", *durability.CONFIG_NAMES)),
)


def read_servers(answers: Sequence[Answer], mode: str) -> durability.Server | None:
    """The servers as one, by the weakest of them; None if they did not answer. `mode` is how they
    are reached."""
    infos, configs = answers
    if isinstance(infos, StoreUnavailable) or isinstance(configs, StoreUnavailable):
        return None
    found = [
        durability.parse_server(durability.parse_info(info), _config(config), mode=mode)
        for info, config in zip(infos, configs, strict=True)
        if not isinstance(info, Exception)
    ]
    return durability.weakest(found) if found else None


def _config(answer: Any) -> dict[str, str] | None:
    return None if isinstance(answer, Exception) else durability.parse_config(answer)
