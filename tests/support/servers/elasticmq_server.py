"""Amazon SQS as ElasticMQ emulates it: a second opinion beside moto, in a Java process of its own.

It differs from moto, and so shows what moto cannot: the first message of a FIFO group that is
visible again comes before the later ones, and a receipt handle that a later receive has replaced is
refused. It is an emulator too, and loses everything when it ends. It does not tell how long a queue
keeps a message, nor how large one may be.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.kafka_server import find_java
from tests.support.servers.maven_jars import find_jars
from tests.support.servers.requirements import require
from tests.support.servers.shared_servers import shared_by_the_run
from tests.support.servers.sqs_server import REGION, SqsServer

_SETTINGS = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
aws {{ region = {region}, accountId = 000000000000 }}
"""
_LOG_SETTINGS = """\
<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %level %logger %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>
"""
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class ElasticMqServer(SqsServer):
    """One ElasticMQ, with the queues and clients of `SqsServer`."""

    def __init__(self, base: Path | None = None) -> None:
        self._jars = find_jars("elasticmq")
        find_java()
        super().__init__(base)

    def command(self) -> Sequence[str | Path]:
        settings, log = self.directory / "elasticmq.conf", self.directory / "logback.xml"
        settings.write_text(_SETTINGS.format(port=self.port, region=REGION), encoding="utf-8")
        log.write_text(_LOG_SETTINGS, encoding="utf-8")
        files = (f"-Dconfig.file={settings}", f"-Dlogback.configurationFile={log}")
        own = f"-Djava.io.tmpdir={self.directory}"
        jars = ("-cp", f"{self._jars}/*", "org.elasticmq.server.Main")
        return [find_java(), *_JAVA_OPTIONS, own, *files, *jars]


def elasticmq() -> ElasticMqServer:
    """The ElasticMQ that a run shares; each test makes its own queues."""
    return require(_elasticmq)


@functools.cache
def _elasticmq() -> ElasticMqServer:
    return shared_by_the_run("elasticmq", ElasticMqServer)
