"""A call of a program: one script for the records of one or several buckets, or a plain command.

A program yields a list of calls, which are sent together, and is sent their replies. This module
knows neither connections nor what the scripts do.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.redis.scripts import READS, scripts

T = TypeVar("T")

EVERY_NODE: Final = -1


class Call(NamedTuple):
    """One script with its keys and arguments; without a script, `args` is a plain command.

    bucket   any bucket of its keys, by which its node is found; EVERY_NODE for all nodes that hold
             buckets, which gives a list of replies
    """

    script: str
    bucket: int
    keys: Sequence[bytes]
    args: Sequence[Any]

    @property
    def is_write(self) -> bool:
        """True if the call may change something."""
        return bool(self.script) and self.script not in READS

    @property
    def words(self) -> tuple[Any, ...]:
        """The command to send."""
        if not self.script:
            return tuple(self.args)
        digest = scripts()[self.script].digest
        return (b"EVALSHA", digest, len(self.keys), *self.keys, *self.args)


# What came of a call: the server's reply, or why there is none.
Answer = Any | StoreUnavailable

# A generator of lists of calls, which is sent an answer to each.
Calls = Generator[list[Call], Sequence[Answer], T]
