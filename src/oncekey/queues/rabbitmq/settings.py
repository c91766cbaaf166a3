"""The settings of a consumer of RabbitMQ, checked, and what RabbitMQ says about its queue.

Over AMQP RabbitMQ gives its version and no more. Its management API has a queue's type, arguments
and policy, so a consumer that is given `management_url` asks there; without it, the defaults of
RabbitMQ are taken. Contains the one request to that API, and knows neither of the two clients.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import math
import random
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BATCH_DEFAULT, BrokerFacts

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 10.0  # for RabbitMQ to take leave of a session
PUBLISH_TIMEOUT_S: Final = 30.0  # for RabbitMQ to confirm a copy
CONSUMER_TIMEOUT_S: Final = 1_800.0  # RabbitMQ's own default
MANAGEMENT_TIMEOUT_S: Final = 10.0
DELIVERY_LIMIT_DEFAULT: Final = 20  # of quorum queues, from 4.0 on
# Since then a classic queue has no consumer timeout, a `nack` is no failed delivery, and a quorum
# queue can delay what comes back.
_QUORUM_DELAYS_SINCE: Final = (4, 3)
_DELIVERY_LIMIT_SINCE: Final = (4, 0)
_DELAYED_BY_NACK: Final = ("all", "returned")
_SECOND: Final = 1_000_000
_log = logging.getLogger("oncekey")

Version = tuple[int, ...]


class QueueNames(NamedTuple):
    """The consumed queue, and where its messages go that are dead letters, or that are parked."""

    queue: str
    dead_letters: str
    parked: str

    def delay_queue(self, seconds: float) -> str:
        """The name of the delay queue of one step."""
        return f"{self.queue}.delay.{round(seconds * 1000)}ms"


def names_of(queue: str, dead_letters: str | None, parked: str | None) -> QueueNames:
    return QueueNames(queue, dead_letters or f"{queue}.dead", parked or f"{queue}.parked")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """Where the queue is, and what is known of it beforehand: see `RabbitConsumer`."""

    url: str | Sequence[str]
    queue: str
    dead_letter_queue: str | None = None
    park_queue: str | None = None
    declare: bool = False
    management_url: str | None = None
    consumer_timeout: Duration | None = None
    identity: str | None = None
    prefetch: int = BATCH_DEFAULT

    def __post_init__(self) -> None:
        if not isinstance(self.queue, str) or not self.queue:
            raise ConfigurationError("queue= must be the name of a queue")
        if self.queue in (self.names.dead_letters, self.names.parked):
            # A dead letter that comes back is a redrive: its handler would run again for ever.
            raise ConfigurationError(
                f"dead_letter_queue and park_queue must be other queues than {self.queue!r}, "
                "which is consumed"
            )
        for url in self.urls:
            if urlsplit(url).scheme not in ("amqp", "amqps"):
                raise ConfigurationError("url= must be such as amqp://user:password@host:5672/")
        if not self.urls:
            raise ConfigurationError("url= is empty")
        if self.consumer_timeout is not None:
            microseconds(self.consumer_timeout, name="consumer_timeout")

    @property
    def urls(self) -> list[str]:
        """The addresses of the nodes."""
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def shuffled(self) -> list[str]:
        """The addresses in the order in which a session tries them, so that the consumers of a
        lost node do not all go to the same one."""
        return random.sample(self.urls, len(self.urls))

    @property
    def names(self) -> QueueNames:
        return names_of(self.queue, self.dead_letter_queue, self.park_queue)

    def ask_report(self, version: Version) -> QueueReport | None:
        """What the management API reports, if its address was given. Blocks."""
        if self.management_url is None:
            return None
        answer = ask_management(self.management_url, virtual_host(self.urls[0]), self.queue)
        return parse_report(answer, version)

    def facts(
        self, version: Version, report: QueueReport | None, cluster: str | None = None
    ) -> BrokerFacts:
        """What the loop has to know; warns of what may lose messages."""
        if report is not None:
            for warning in warnings_of(self.queue, report):
                _log.warning("RabbitMQ: %s", warning)
        timeout = self.consumer_timeout
        doubt, needs_name = cluster_doubt(cluster, len(self.urls))
        facts = facts_of(
            self.queue,
            version,
            report,
            identity=self.identity,
            broker=identity_of("rabbitmq", vhost=virtual_host(self.urls[0]), cluster=cluster),
            consumer_timeout=(
                None
                if timeout is None
                else microseconds(timeout, name="consumer_timeout") / _SECOND
            ),
        )
        return facts._replace(broker_doubt=doubt, needs_name=needs_name)


def settings_of(
    queue: str, url: str | Sequence[str], options: dict[str, Any]
) -> tuple[RabbitSettings, dict[str, Any]]:
    """The settings of the broker among a consumer's options, and the others."""
    mine = {field.name for field in dataclasses.fields(RabbitSettings)} - {"prefetch"}
    taken = {name: value for name, value in options.items() if name in mine}
    others = {name: value for name, value in options.items() if name not in mine}
    return RabbitSettings(url=url, queue=queue, **taken), others


# --- what RabbitMQ says ---------------------------------------------------------------------------


class QueueReport(NamedTuple):
    """A queue as the management API describes it; None for what is not set.

    is_quorum        it is a quorum queue
    ttl              after how many seconds its messages expire
    expires          after how many seconds without a consumer the queue itself is removed
    delivery_limit   how many failed deliveries a message may have
    consumer_timeout  for how many seconds a consumer may hold a message
    retry_delay      after how many seconds a message comes back that was given back
    has_dead_letters  what it gives up goes to an exchange, and is not dropped
    """

    is_quorum: bool
    ttl: float | None = None
    expires: float | None = None
    delivery_limit: int | None = None
    consumer_timeout: float | None = None
    retry_delay: float | None = None
    has_dead_letters: bool = True


def parse_report(answer: Mapping[str, Any], version: Version) -> QueueReport:
    """The report in an answer of the management API; raises ConfigurationError for a stream."""
    if answer.get("type") == "stream":
        raise stream_refused(str(answer.get("name")))
    policy = answer.get("effective_policy_definition") or {}
    arguments = answer.get("arguments") or {}

    def setting(name: str) -> Any:
        return arguments.get(f"x-{name}", policy.get(name))

    def seconds(name: str) -> float | None:
        both = (arguments.get(f"x-{name}"), policy.get(name))
        found = [value / 1000 for value in both if isinstance(value, int)]
        return min(found, default=None)  # RabbitMQ takes the shorter of the two

    is_quorum = answer.get("type") == "quorum"
    delays = is_quorum and version >= _QUORUM_DELAYS_SINCE
    is_delayed = delays and setting("delayed-retry-type") in _DELAYED_BY_NACK
    return QueueReport(
        is_quorum,
        seconds("message-ttl"),
        seconds("expires"),
        _delivery_limit(setting("delivery-limit"), version) if is_quorum else None,
        seconds("consumer-timeout"),
        seconds("delayed-retry-min") if is_delayed else None,
        setting("dead-letter-exchange") is not None,
    )


def stream_refused(queue: str) -> ConfigurationError:
    return ConfigurationError(
        f"{queue!r} is a stream: what is published while no consumer runs would be skipped, and "
        "nothing is removed from it. Bind a quorum queue to the same exchange, and consume that"
    )


def _delivery_limit(limit: object, version: Version) -> int | None:
    if isinstance(limit, int):
        return limit if limit >= 0 else None
    return DELIVERY_LIMIT_DEFAULT if version >= _DELIVERY_LIMIT_SINCE else None


def facts_of(
    queue: str,
    version: Version,
    report: QueueReport | None,
    *,
    identity: str | None,
    consumer_timeout: float | None,
    broker: str | None = None,
) -> BrokerFacts:
    """What the loop has to know. `consumer_timeout` is what the user says it is."""
    hold_max: float | None = consumer_timeout or CONSUMER_TIMEOUT_S
    if report is None:
        # A queue has no time to live unless it is given one, and nobody can be asked here.
        return BrokerFacts(queue, identity, math.inf, hold_max, broker=broker)
    if consumer_timeout is None:
        hold_max = report.consumer_timeout or CONSUMER_TIMEOUT_S
        if not report.is_quorum and version >= _QUORUM_DELAYS_SINCE:
            hold_max = None
    limit = report.delivery_limit
    return BrokerFacts(
        queue,
        identity,
        retention=report.ttl if report.ttl is not None else math.inf,
        hold_max=hold_max,
        receives_max=None if limit is None else limit + 1,
        broker=broker,
    )


def warnings_of(queue: str, report: QueueReport) -> Iterator[str]:
    """What an operator should know of before messages are lost."""
    if report.delivery_limit is not None and not report.has_dead_letters:
        yield (
            f"queue {queue!r} has no dead-letter exchange: RabbitMQ drops a message whose "
            f"consumers died {report.delivery_limit + 1} times. Set dead-letter-exchange, or "
            "delivery-limit to -1, by a policy"
        )
    if report.ttl is not None and not report.has_dead_letters:
        yield (
            f"queue {queue!r} drops messages that waited for {report.ttl:g} s; set "
            "dead-letter-exchange by a policy to keep them"
        )
    if report.expires is not None:
        yield (
            f"queue {queue!r} is removed, with its messages, after {report.expires:g} s without "
            "a consumer"
        )


def parse_version(properties: Mapping[str, Any]) -> Version:
    """The server's version, from what it says when a client connects; (0,) for another product."""
    product, version = (_text(properties.get(name)) for name in ("product", "version"))
    if product != "RabbitMQ":
        return (0,)
    numbers = version.split("-")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdecimal()) or (0,)


def parse_cluster(properties: Mapping[str, Any]) -> str | None:
    """The name of the cluster, from what the server says when a client connects. Until an operator
    gives it one (`rabbitmqctl set_cluster_name`), each node gives its own name, as rabbit@host."""
    return _text(properties.get("cluster_name")) or None


def cluster_doubt(cluster: str | None, addresses: int) -> tuple[str, bool]:
    """Why the name of a cluster may be that of another one too, or ""; and whether a consumer
    with so many addresses must not begin by it."""
    if cluster is None or "@" not in cluster:
        return "", False
    name_it = "Give the cluster a name (rabbitmqctl set_cluster_name NAME), or the consumer "
    if addresses > 1:
        return (
            f"RabbitMQ's cluster has no name, and each of its nodes tells its own ({cluster!r}). "
            "So a consumer that reaches another node at its next start would be refused, or two "
            f"clusters would share their keys. {name_it}broker_name="
        ), True
    return (
        "RabbitMQ tells the name of the node that answers as long as its cluster has none. "
        f"{name_it}broker_name="
    ), False


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def virtual_host(url: str) -> str:
    """The virtual host in an AMQP URL."""
    return unquote(urlsplit(url).path.removeprefix("/")) or "/"


def ask_management(url: str, host: str, queue: str) -> dict[str, Any]:
    """What the management API reports about a queue. `url` may have the user and the password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("management_url= must be such as http://user:password@host:15672")
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    user = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    request = urllib.request.Request(
        f"{address}/api/queues/{quote(host, safe='')}/{quote(queue, safe='')}",
        headers={"Authorization": "Basic " + base64.b64encode(user.encode()).decode()},
    )
    try:
        with urllib.request.urlopen(request, timeout=MANAGEMENT_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        error.close()
        raise ConfigurationError(
            f"RabbitMQ's management API does not tell about queue {queue!r}: {error}"
        ) from error
    except Exception as error:  # of the network, of HTTP or of JSON
        raise BrokerUnavailable(f"RabbitMQ's management API does not answer: {error}") from error
