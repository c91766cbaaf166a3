"""Servers that all processes of a run share, because each takes seconds to start.

The first process that asks starts one, the others are told of it by a file in the run's folder. It
stays until the run ends, whichever process started it; the run's reaper ends it. Who shares it
names queues, topics and groups anew, and neither stops nor reconfigures it.
"""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable

from tests.support.servers import processes
from tests.support.servers.run_folders import run_folders
from tests.support.servers.server_lifetime import Started, started


def shared_by_the_run(name: str, make: Callable[[], Started]) -> Started:
    """Return the run's servers of this name; `make` makes them for the first who asks."""
    folder = run_folders().disk
    described = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if described.exists():
            known: Started = pickle.loads(described.read_bytes())
            return known
        servers = make()
        with processes.staying_until_the_run_ends():
            started(servers)
        described.write_bytes(pickle.dumps(servers))
        return servers
