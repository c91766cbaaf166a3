"""Kafka of this decade for tests: one process that is broker and controller, without ZooKeeper.

`KraftServer` is Apache Kafka 4.1.0 from its own jars. It has headers, topic ids, transactions, both
group protocols, cooperative rebalances and the requests of administrators; confluent-kafka and
aiokafka speak to it. It differs from a production cluster in what one process cannot have:
replicas, so also elections of another leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import processes
from tests.support.servers.kafka_server import PARTITIONS, find_java, properties
from tests.support.servers.maven_jars import find_jars
from tests.support.servers.processes import User, clean_environment
from tests.support.servers.server_lifetime import LoopbackServer

DEFAULTS: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "log.index.size.max.bytes": "65536",
    "message.max.bytes": "2000000",
    "log.cleaner.enable": "false",
    "file.delete.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    # A group begins at once, and a consumer that was killed is noticed within a test's patience.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}
# For a broker that a test kills: the controller takes it back when its last session is over.
SOON_BACK: dict[str, str] = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
}
_JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx400m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_CLUSTER = "TestsOfOncekey-0000001"  # the id of every cluster that is not given another
_ANSWER_S = 60


class KraftServer(LoopbackServer):
    """One node of Kafka 4.1: `with KraftServer() as kafka:`, then `kafka.client`.

    A killed one keeps its log, and starts again on its ports.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        cluster: str = _CLUSTER,
        base: Path | None = None,
    ) -> None:
        """`settings` override those in `DEFAULTS`; `cluster` is its id, 22 letters of base 64."""
        self._jars = find_jars("kafka")
        find_java()
        super().__init__("kraft", base)
        self._settings = settings or {}
        self._cluster = cluster
        self._controller_port = 0

    def command(self) -> Sequence[str | Path]:
        return self._java("kafka.Kafka", str(self._written_settings()))

    def launch(self) -> None:
        self.reserve()
        self._controller_port = self._controller_port or processes.free_port()
        if not (self.directory / "data").exists():
            self._format()
        super().launch()

    def _format(self) -> None:
        """Make the data folder of a new cluster, by Kafka's own tool."""
        given = ("--standalone", "-t", self._cluster, "-c", str(self._written_settings()))
        tool = self._java("kafka.tools.StorageTool", "format", *given)
        User().run(tool, self.directory, clean_environment(), _ANSWER_S)

    def _written_settings(self) -> Path:
        own, controller = f"PLAINTEXT://{self.address}", f"127.0.0.1:{self._controller_port}"
        settings = {
            **DEFAULTS,
            **self._settings,
            "listeners": f"{own},CONTROLLER://{controller}",
            "advertised.listeners": own,
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self.directory / "data"),
        }
        return properties(self.directory / "server.properties", settings)

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        own = f"-Djava.io.tmpdir={self.directory}"
        jars = f"{self._jars}/*"
        return [str(find_java()), *_JAVA_OPTIONS, own, "-cp", jars, main_class, *arguments]

    def is_ready(self) -> bool:
        """True if the broker has joined its own cluster, and has made what groups are kept in."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        try:
            if not self._admin().list_topics(timeout=1).brokers:
                return False
            asking = Consumer({**self.client, "group.id": "first"})
            try:
                asking.committed([TopicPartition("none", 0)], timeout=1)
            finally:
                asking.close()
        except KafkaException:
            return False
        return True

    # --- for tests ------------------------------------------------------------------------------

    @property
    def client(self) -> dict[str, Any]:
        """What a confluent-kafka client needs to know of this broker."""
        return {"bootstrap.servers": self.address, "log_level": 0}

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=_ANSWER_S).topics)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until the cluster has forgotten it. A client that asks for it
        may have let the broker create another one by then."""
        from confluent_kafka import KafkaException

        admin = self._admin()
        deleted = _topic_id(admin, topic)
        admin.delete_topics([topic], operation_timeout=_ANSWER_S)[topic].result(_ANSWER_S)

        def is_gone() -> bool:
            try:
                return topic not in self.topics() or _topic_id(admin, topic) != deleted
            except KafkaException:  # it went between the two questions
                return False

        processes.wait_until(is_gone, f"{topic} is deleted", _ANSWER_S)

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, and wait until the cluster tells of them."""
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        admin = self._admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(_ANSWER_S)

        def are_there() -> bool:
            found = admin.list_topics(topic, timeout=_ANSWER_S).topics[topic]
            return len(found.partitions) == total

        processes.wait_until(are_there, f"{topic} has {total} partitions", _ANSWER_S)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client)


def _topic_id(admin: Any, topic: str) -> str:
    from confluent_kafka import TopicCollection

    asked = admin.describe_topics(TopicCollection([topic]), request_timeout=5)
    return str(asked[topic].result(_ANSWER_S).topic_id)
