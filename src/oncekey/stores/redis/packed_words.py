"""Commands in Redis' protocol, as the bytes that are sent.

hiredis writes them twenty times as fast as redis-py's own code, which its asyncio client always
uses. Where hiredis is missing, redis-py writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

pack: Any = None
try:
    from hiredis import pack_command as pack
except ImportError:  # it makes things faster, and nothing else
    pass


def packed(connection: Any, commands: Sequence[Sequence[Any]]) -> Iterable[bytes]:
    """The commands as pieces of bytes; `connection` is one of redis-py's."""
    if pack is None:
        pieces: Iterable[bytes] = connection.pack_commands(commands)
        return pieces
    return [b"".join([pack(command) for command in commands])]
