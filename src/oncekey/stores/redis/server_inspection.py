"""Inspects Redis or Valkey servers for the command line, without writing anything.

This module answers what commands ask about a store before it is opened (oncekey.stores.inspection).
There are no tables: a store exists wherever a server answers, and its version is that of its
records.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Inspection
from oncekey.stores.record_format import VERSION
from oncekey.stores.redis.checkup_session import checkup_session, read_url
from oncekey.stores.redis.durability import guarantee, refusal
from oncekey.stores.redis.record_checks import count_records

_FORMAT: Final = "records"


def inspect(url: str) -> Inspection:
    """What is on the servers. StoreUnavailable if they cannot be reached, ConfigurationError if the
    URL cannot be parsed or if a store would refuse to start there."""
    with checkup_session(url) as session:
        server = session.server
        reason = refusal(server)
        if reason:
            raise ConfigurationError(reason)
        return Inspection(
            name=f"{session.name}, prefix {session.options.prefix!r}",
            exists=True,
            has_records=count_records(session) > 0,
            applied={VERSION: _FORMAT},
            missing=[],
            guarantee=guarantee(server, session.options.failover, session.sightings),
        )


def migration_script(url: str) -> str:
    """There is none."""
    read_url(url)
    raise ConfigurationError("redis:// has no tables, so there is no SQL to run")
