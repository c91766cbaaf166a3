"""RabbitMQ for the tests of queues: a node that a run shares, and queues with fresh names.

The node is started once per run, for all of its processes, and stops when the run ends. A test
that kills or reconfigures a node starts its own.
"""

from __future__ import annotations

import functools

from tests.support.servers.rabbitmq_server import RabbitServer
from tests.support.servers.requirements import require
from tests.support.servers.shared_servers import shared_by_the_run


def rabbitmq() -> RabbitServer:
    """The shared node."""
    return require(_rabbitmq)


@functools.cache
def _rabbitmq() -> RabbitServer:
    return shared_by_the_run("rabbitmq", RabbitServer)
