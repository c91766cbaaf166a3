"""Real servers for tests and benchmarks: they listen on the loopback and end with the run.

There are `Postgres`, `PgBouncer` in front of one, and `Proxy`, which breaks connections on demand.
`RedisServer`, `RedisCluster` and `RedisSentinel` are Valkey by default; `EtcdCluster` is etcd, and
`RabbitServer` is RabbitMQ. `SqsServer` and `ElasticMqServer` are emulators: Amazon's queues cannot
be had.
`KraftServer` is Kafka of this decade, `KafkaServer` an old release, `KafkaMock` librdkafka's
imitation.
`Uvicorn`, `Hypercorn`, `Granian` and `Gunicorn` serve apps. A server that is not installed and
cannot be fetched raises `ServerMissing`; `require` turns that into a skip or a failure.
"""

from __future__ import annotations

from tests.support.servers.elasticmq_server import ElasticMqServer
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.http_servers import Granian, Gunicorn, HttpServer, Hypercorn, Uvicorn
from tests.support.servers.installations import Installation, find_postgres, pick_postgres
from tests.support.servers.kafka_server import KafkaMock, KafkaServer
from tests.support.servers.kraft_server import KraftServer
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres import Postgres
from tests.support.servers.processes import ServerFailed, ServerMissing
from tests.support.servers.proxy import Proxy
from tests.support.servers.rabbitmq_server import RabbitServer
from tests.support.servers.redis_cluster import RedisCluster
from tests.support.servers.redis_sentinel import RedisSentinel
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require
from tests.support.servers.sqs_server import SqsServer

__all__ = [
    "ElasticMqServer",
    "EtcdCluster",
    "Granian",
    "Gunicorn",
    "HttpServer",
    "Hypercorn",
    "Installation",
    "KafkaMock",
    "KafkaServer",
    "KraftServer",
    "PgBouncer",
    "Postgres",
    "Proxy",
    "RabbitServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "ServerFailed",
    "ServerMissing",
    "SqsServer",
    "Uvicorn",
    "find_postgres",
    "pick_postgres",
    "require",
]
