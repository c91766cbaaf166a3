"""Servers written in Java, as jars from Maven's central repository, which `mvn` fetches once.

Each jar is named with its version, because a server needs far fewer than it declares. All servers
are fetched at once: most of the time goes by until Maven has its own plugin. What came is compared
with a digest before it is kept. This module owns the jars in the cache; it must not know how a
server is started.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.support.servers import debian_packages
from tests.support.servers.processes import ServerMissing, clean_environment
from tests.support.servers.run_folders import run_folders

KAFKA = "4.1.0"
ELASTICMQ = "1.6.14"
_PEKKO = "1.1.5"
_PEKKO_HTTP = "1.1.0"
_JACKSON = "2.19.0"
# Of each server: group, version, and the names of the jars.
JARS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "kafka": (
        (
            "org.apache.kafka",
            KAFKA,
            (
                "kafka_2.13",
                "kafka-clients",
                "kafka-coordinator-common",
                "kafka-group-coordinator",
                "kafka-group-coordinator-api",
                "kafka-metadata",
                "kafka-raft",
                "kafka-server",
                "kafka-server-common",
                "kafka-share-coordinator",
                "kafka-storage",
                "kafka-storage-api",
                "kafka-transaction-coordinator",
            ),
        ),
        (
            "com.fasterxml.jackson.core",
            _JACKSON,
            ("jackson-annotations", "jackson-core", "jackson-databind"),
        ),
        ("com.fasterxml.jackson.dataformat", _JACKSON, ("jackson-dataformat-yaml",)),
        ("com.dynatrace.hash4j", "0.22.0", ("hash4j",)),
        ("com.google.re2j", "1.8", ("re2j",)),
        ("com.typesafe.scala-logging", "3.9.5", ("scala-logging_2.13",)),
        ("com.yammer.metrics", "2.2.0", ("metrics-core",)),
        ("commons-validator", "1.9.0", ("commons-validator",)),
        ("net.sf.jopt-simple", "5.0.4", ("jopt-simple",)),
        ("net.sourceforge.argparse4j", "0.7.0", ("argparse4j",)),
        ("org.apache.logging.log4j", "2.24.3", ("log4j-api", "log4j-core")),
        ("org.hdrhistogram", "2.2.2", ("HdrHistogram",)),
        ("org.pcollections", "4.0.2", ("pcollections",)),
        ("org.scala-lang", "2.13.16", ("scala-library",)),
        ("org.slf4j", "1.7.36", ("slf4j-api", "slf4j-simple")),
    ),
    "elasticmq": (
        (
            "org.elasticmq",
            ELASTICMQ,
            (
                "elasticmq-core_2.13",
                "elasticmq-persistence-core_2.13",
                "elasticmq-persistence-file_2.13",
                "elasticmq-persistence-sql_2.13",
                "elasticmq-rest-sqs_2.13",
                "elasticmq-server_2.13",
            ),
        ),
        (
            "org.apache.pekko",
            _PEKKO,
            (
                "pekko-actor_2.13",
                "pekko-protobuf-v3_2.13",
                "pekko-slf4j_2.13",
                "pekko-stream_2.13",
            ),
        ),
        (
            "org.apache.pekko",
            _PEKKO_HTTP,
            (
                "pekko-http-core_2.13",
                "pekko-http-spray-json_2.13",
                "pekko-http_2.13",
                "pekko-parsing_2.13",
            ),
        ),
        ("ch.qos.logback", "1.3.15", ("logback-classic", "logback-core")),
        ("com.typesafe", "1.4.3", ("config",)),
        ("com.typesafe", "0.6.1", ("ssl-config-core_2.13",)),
        ("com.typesafe.scala-logging", "3.9.5", ("scala-logging_2.13",)),
        ("io.spray", "1.3.6", ("spray-json_2.13",)),
        ("org.parboiled", "2.5.1", ("parboiled_2.13",)),
        ("org.reactivestreams", "1.0.4", ("reactive-streams",)),
        ("org.scala-lang", "2.13.15", ("scala-library",)),
        ("org.scala-lang.modules", "1.0.1", ("scala-async_2.13",)),
        ("org.scala-lang.modules", "2.3.0", ("scala-xml_2.13",)),
        ("org.slf4j", "2.0.7", ("slf4j-api",)),
    ),
}
_NAMES = {"kafka": "Kafka 4", "elasticmq": "ElasticMQ"}
_SHA256 = "0a162ae028a1824c9b5f00e3bf7be4a21533956c9739fca1ef5ebf5bd6d7ef8b"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_SECONDS = 240
# A repository that does not answer is given up soon: there is an older broker for the tests.
_OPTIONS = (
    "--quiet",
    "--batch-mode",
    "--strict-checksums",
    "-Daether.connector.connectTimeout=5000",
    "-Daether.connector.requestTimeout=10000",
    "-Dmaven.wagon.http.retryHandler.count=0",
)


@functools.cache
def find_jars(server: str) -> Path:
    """Return the folder with the jars of one server; raises ServerMissing with its name."""
    folder = debian_packages.cache_folder() / f"jars-{_SHA256[:12]}"
    if not folder.exists():
        failed = run_folders().disk / "jars.missing"
        with (run_folders().disk / "jars.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if failed.exists():  # it is tried once in a run, because the next test would wait again
                raise ServerMissing(_NAMES[server], failed.read_text(encoding="utf-8"))
            try:
                _fetch(folder)
            except ServerMissing as missing:
                failed.write_text(missing.how_to_get, encoding="utf-8")
                raise ServerMissing(_NAMES[server], missing.how_to_get) from missing
    return folder / server


def _fetch(folder: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ServerMissing("mvn", "install Maven (Debian's package maven), which fetches its jars")
    if folder.exists():
        return  # another process of the run was faster
    with debian_packages.work_folder(folder) as work:
        (work / "pom.xml").write_text(_project(), encoding="utf-8")
        # Maven would keep its own copies in the user's home.
        command = [mvn, *_OPTIONS, f"-Dmaven.repo.local={work / 'repository'}", f"{_PLUGIN}:copy"]
        _run(command, work)
        found = _digest(work / "jars")
        if found != _SHA256:
            raise ServerMissing("jars", f"the jars from Maven are not what they were ({found})")
        try:
            (work / "jars").rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another run was faster, with the same content
                raise


def _run(command: list[str], work: Path) -> None:
    how_to_get = "`mvn` must reach Maven's central repository, or a mirror of it"
    try:
        done = subprocess.run(
            command,
            cwd=work,
            # Java would leave a folder of its figures in /tmp.
            env=clean_environment({"MAVEN_OPTS": "-XX:-UsePerfData"}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerMissing("jars", f"{how_to_get} ({type(error).__name__})") from error
    if done.returncode:
        raise ServerMissing("jars", f"{how_to_get} (it ended with {done.returncode})")


def _project() -> str:
    """Return a project of Maven that builds nothing, and has the jars copied."""
    group, name, version = _PLUGIN.split(":")
    items = "".join(
        f"<artifactItem>{_coordinates(owner, jar, of)}"
        f"<outputDirectory>jars/{server}</outputDirectory></artifactItem>"
        for server, groups in JARS.items()
        for owner, of, jars in groups
        for jar in jars
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        f"{_coordinates('tests', 'jars', '1')}<packaging>pom</packaging><build><plugins>"
        f"<plugin>{_coordinates(group, name, version)}<configuration><artifactItems>{items}"
        "</artifactItems></configuration></plugin></plugins></build></project>"
    )


def _coordinates(group: str, name: str, version: str) -> str:
    return f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"


def _digest(folder: Path) -> str:
    """Return the digest of all jars with their names."""
    lines = [
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(folder.rglob("*.jar"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
