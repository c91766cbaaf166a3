"""The settings of a Kafka consumer, checked: what it refuses to begin with, and the limits it has.

The clients have options under which messages are lost without a word: offsets that are committed in
the background, and a start at the end of the topic where no offset is known. Both are refused
unless they are said. This module is pure; it knows the two clients' names of options, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError

MAX_UNCOMMITTED_DEFAULT: Final = 1_000
MAX_UNCOMMITTED_MAX: Final = 100_000
STUCK_AFTER_DEFAULT: Final = "1m"
REVOKE_TIMEOUT_DEFAULT: Final = "10s"
ASK_TIMEOUT_DEFAULT: Final = "10s"
MAX_POLL_INTERVAL_S: Final = 300.0  # both clients' own default
# The longest that a message to another topic may take; until then its offset is held back.
FORWARD_TIMEOUT_S: Final = 30.0
# Of a message to another topic. What the brokers have taken once is theirs to refuse, so this is
# the clients' highest; their defaults are below what a topic may hold.
FORWARD_MAX_BYTES: Final = 1_000_000_000
# After a message could not be written to another topic, it waits here for so long.
FORWARD_RETRY_S: Final = 5.0
# `receive` waits no longer, since nothing is asked of Kafka in it, and a stop is noticed after it.
WAIT_MAX_S: Final = 0.25
# The client is polled so often, also while nothing comes.
POLL_S: Final = 0.05
FETCH_MAX: Final = 500  # messages that are taken from the client at a time
# Partitions are paused when no message was wanted for so long: the store is down, or all handlers
# are busy. The client has fetched some ahead by then, and a pause throws those away.
PAUSE_AFTER_S: Final = 2.0
COMMIT_RETRY_S: Final = 1.0  # after Kafka did not take an offset
CHECK_RETRY_S: Final = 1.0  # after Kafka did not give a topic's id
# How often the ids of the topics are asked for, while messages come or offsets are committed.
CHECK_EVERY_S: Final = 5.0
# A topic that Kafka does not know is asked for so long at the start: a broker that creates topics
# does so in the background, and Kafka 4 calls one unknown until it is there.
NEW_TOPIC_S: Final = 5.0
# The group of a redrive keeps how far it came in the dead-letter topic.
REDRIVE_SUFFIX: Final = ".redrive"
# Kafka's own limit for the name of a topic.
TOPIC_MAX_CHARS: Final = 249
SKIPS_TO_END: Final = "latest"  # of both clients' `auto.offset.reset`
ENDS_WITHOUT_OFFSET: Final = ("error", "none")  # as confluent-kafka and aiokafka call it

# Kafka's own codes of a topic that is not there, or is being made.
_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_SECOND: Final = 1_000_000
Order = Literal["partition", "key", "none"]
_ORDERS: Final = get_args(Order)
_OPTIONS: Final = (
    "order", "retry_topic", "dead_letter_topic", "park_topic", "max_uncommitted", "stuck_after",
    "revoke_timeout", "ask_timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OptionNames:
    """What one client calls the options that decide about losing messages."""

    servers: tuple[str, ...]
    group: str
    reset: str
    resets: tuple[str, ...]
    auto_commit: str
    poll_interval: str


CONFLUENT: Final = OptionNames(
    ("bootstrap.servers", "metadata.broker.list"),
    "group.id",
    "auto.offset.reset",
    ("earliest", "latest", "error"),
    "enable.auto.commit",
    "max.poll.interval.ms",
)
AIOKAFKA: Final = OptionNames(
    ("bootstrap_servers",),
    "group_id",
    "auto_offset_reset",
    ("earliest", "latest", "none"),
    "enable_auto_commit",
    "max_poll_interval_ms",
)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The settings of one consumer on its topic. A topic that is not named is TOPIC.GROUP.retry,
    TOPIC.GROUP.dead or TOPIC.GROUP.parked.

    topic              what is consumed, with `retry_topic`
    group              the consumer group: that in `config`, else the consumer's name
    order              of which messages one is handled after the other: "partition", "key" (those
                       of a partition that have the same key) or "none"
    retry_topic        takes messages that would hold back their partition for too long; None: the
                       partition waits for them instead
    dead_letter_topic  takes messages that failed for good
    park_topic         takes messages of which nobody knows how they ended
    max_uncommitted    a partition with as many received and uncommitted messages is paused
    stuck_after        a try that comes so long after the first one is made from the retry topic
    revoke_timeout     how long a revoked partition waits for its running handlers
    ask_timeout        how long the broker may take to answer about its topics, and with aiokafka
                       to take an offset
    """

    topic: str
    group: str
    order: Order
    retry_topic: str | None
    dead_letter_topic: str
    park_topic: str
    max_uncommitted: int
    stuck_after: float
    revoke_timeout: float
    ask_timeout: float

    @property
    def consumed(self) -> list[str]:
        return [self.topic] if self.retry_topic is None else [self.topic, self.retry_topic]

    @property
    def written(self) -> list[str]:
        topics = [self.dead_letter_topic, self.park_topic]
        return topics if self.retry_topic is None else [self.retry_topic, *topics]


def settings_of(
    topic: str, config: Mapping[str, Any], name: str, names: OptionNames, options: dict[str, Any]
) -> KafkaSettings:
    """Return the checked settings of a consumer, and take their fields out of its options."""
    given = {each: options.pop(each) for each in _OPTIONS if each in options}
    settings = _settings(topic, _group_of(config, name, names), **given)
    _check_config(config, names, settings.revoke_timeout)
    return settings


def _settings(
    topic: str,
    group: str,
    *,
    order: Order = "partition",
    retry_topic: str | None = "",
    dead_letter_topic: str = "",
    park_topic: str = "",
    max_uncommitted: int = MAX_UNCOMMITTED_DEFAULT,
    stuck_after: Duration = STUCK_AFTER_DEFAULT,
    revoke_timeout: Duration = REVOKE_TIMEOUT_DEFAULT,
    ask_timeout: Duration = ASK_TIMEOUT_DEFAULT,
) -> KafkaSettings:
    if not isinstance(topic, str) or not topic or topic.startswith("^"):
        raise ConfigurationError(
            f"topic={topic!r} must be the name of one topic, since keys are told apart by topic; "
            "start a consumer for each"
        )
    if order not in _ORDERS:
        raise ConfigurationError(f"order={order!r} must be one of {', '.join(_ORDERS)}")
    is_count = isinstance(max_uncommitted, int) and not isinstance(max_uncommitted, bool)
    if not is_count or not 1 <= max_uncommitted <= MAX_UNCOMMITTED_MAX:
        raise ConfigurationError(
            f"max_uncommitted={max_uncommitted!r} must be a whole number from 1 to "
            f"{MAX_UNCOMMITTED_MAX}"
        )
    # Topics that are not named belong to the group: each group has failures of its own.
    found = KafkaSettings(
        topic,
        group,
        order,
        None if retry_topic is None else retry_topic or f"{topic}.{group}.retry",
        dead_letter_topic or f"{topic}.{group}.dead",
        park_topic or f"{topic}.{group}.parked",
        max_uncommitted,
        microseconds(stuck_after, name="stuck_after") / _SECOND,
        microseconds(revoke_timeout, name="revoke_timeout") / _SECOND,
        microseconds(ask_timeout, name="ask_timeout") / _SECOND,
    )
    _check_topics(found)
    return found


def _check_topics(settings: KafkaSettings) -> None:
    topics = [settings.topic, *settings.written]
    if len(set(topics)) != len(topics):
        raise ConfigurationError(
            "the topic and its retry, dead-letter and park topics must be different topics, and "
            f"here they are {', '.join(topics)}"
        )
    for each in topics:
        if len(each) > TOPIC_MAX_CHARS:
            raise ConfigurationError(f"{each!r} is too long for a topic; name it explicitly")


def topic_patience(codes: Iterable[int], ask_timeout: float) -> float:
    """For how many seconds topics that are not there yet are asked for, by Kafka's codes."""
    found = set(codes)
    if not found <= {_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE}:
        return 0.0  # one will never come
    return min(ask_timeout, NEW_TOPIC_S) if _UNKNOWN_TOPIC in found else ask_timeout


def missing_topics(topics: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        f"Kafka has no topic {', '.join(topics)}; create it first, since a message that cannot be "
        "moved there holds back its partition"
    )


def client_reset(reset: str) -> str:
    """Return where the client itself begins in a partition without a valid offset. "latest" is made
    so by a commit when the group begins; from then on nothing is skipped, neither in a partition
    that is added nor in one whose offset was deleted with its messages."""
    return "earliest" if reset == SKIPS_TO_END else reset


def _group_of(config: Mapping[str, Any], name: str, names: OptionNames) -> str:
    """Return the consumer group: that of the client's options, else the consumer's name."""
    group = config.get(names.group, name)
    if not isinstance(group, str) or not group:
        raise ConfigurationError(f"{names.group}={group!r} must be the name of a consumer group")
    return group


def _check_config(config: Mapping[str, Any], names: OptionNames, revoke_timeout: float) -> None:
    """Refuse options of a client under which messages are lost, or none are found."""
    if not any(config.get(name) for name in names.servers):
        raise ConfigurationError(
            f"config= has no {names.servers[0]}, such as 'host1:9092,host2:9092'; its options are "
            "those of the client's own consumer"
        )
    reset = config.get(names.reset)
    if reset not in names.resets:
        given = f"{names.reset}={reset!r} is not a choice" if reset else f"{names.reset} is missing"
        raise ConfigurationError(
            f"{given}: where a partition has no committed offset, 'earliest' handles what is "
            "there, 'latest' skips it, and there is no default that suits both; give one of "
            f"{', '.join(names.resets)}"
        )
    if _is_on(config.get(names.auto_commit, False)):
        raise ConfigurationError(
            f"{names.auto_commit} must be off: offsets are committed only past messages whose "
            "outcome is stored"
        )
    interval = float(config.get(names.poll_interval, MAX_POLL_INTERVAL_S * 1000)) / 1000
    if revoke_timeout >= interval:
        raise ConfigurationError(
            f"revoke_timeout of {revoke_timeout:g} s must be shorter than {names.poll_interval}, "
            f"which is {interval:g} s: after that the group takes the partitions away"
        )


def _is_on(value: object) -> bool:
    return value not in (False, None, "false", "False", "0", 0)
