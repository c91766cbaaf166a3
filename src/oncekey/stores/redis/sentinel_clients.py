"""The Sentinels that a store asks for the master, in the order in which it asks them.

redis-py moves the Sentinel that has answered to the front by two assignments to places that it read
before it waited for the answer. If two callers do that at once, one Sentinel stands in the list
twice and another one is gone: it is never asked again, and its connection is never closed. So the
list moves a client, instead of overwriting the one that is in its place.
"""

from __future__ import annotations

from typing import Any


class SentinelClients(list[Any]):
    """redis-py's clients of the Sentinels. No assignment to a place loses one."""

    def __setitem__(self, place: Any, client: Any) -> None:
        """Move a client to the front. An assignment to another place is the second half of that,
        and has nothing left to do."""
        if place == 0:
            super().__setitem__(slice(None), [client, *(one for one in self if one is not client)])


def keep_every_sentinel(manager: Any) -> None:
    """Give such a list to redis-py's manager of Sentinels, sync or async."""
    manager.sentinels = SentinelClients(manager.sentinels)
