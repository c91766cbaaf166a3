"""The settings of a consumer: checked when they are given, and against the broker at the start.

Contains what a consumer refuses to begin with, and what it warns of: a `keep` that is shorter than
the broker's own memory, a broker that gives a message up before its tries are over, keys that
cannot be told apart, terms that the store cannot keep. Asks nobody; `BrokerFacts` are what the
broker has told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.core.identity import OPERATION_MAX_CHARS
from oncekey.core.origin import ROUTE_MAX_CHARS, Origin, shown
from oncekey.core.policy import KEEP_MAX_US, OPTION_NAMES, Policy
from oncekey.queues.message_key import KeyChoice, key_reader
from oncekey.queues.queue_message import Message

SURFACE: Final = "queue"
CONCURRENCY_DEFAULT: Final = 8
CONCURRENCY_MAX: Final = 1_024
BATCH_DEFAULT: Final = 64
BATCH_MAX: Final = 1_024
MAX_TRIES_DEFAULT: Final = 5
MAX_TRIES_MAX: Final = 1_000_000
BACKOFF_DEFAULT: Final = "1s"
BACKOFF_MAX_DEFAULT: Final = "5m"
STOP_TIMEOUT_DEFAULT: Final = "30s"
BROKER_NAME_MAX_CHARS: Final = 255
# Of the longest time for which a broker lets a message be held: then it is told.
HOLD_WARN_PART: Final = 0.8
_SECOND: Final = 1_000_000
_log = logging.getLogger("oncekey")

RequestChoice = str | Callable[[Message], Any] | None


class BrokerFacts(NamedTuple):
    """What a broker tells about a queue; None for what it does not tell.

    queue         its name
    identity      tells it from a queue of the same name that is created later
    retention     for how many seconds a message can come back: in the queue and, where it may be
                  moved back from there, in the dead-letter queue; math.inf for ever
    hold_max      for how many seconds in all one consumer may hold a message
    receives_max  after how many deliveries the broker itself makes it a dead letter
    ordered       it promises an order (messages have an order group)
    broker        which broker it is on, in words that stay the same however that is reached: see
                  broker_identity.py
    broker_doubt  why these words may not tell it from another broker, and what to do; or ""
    needs_name    they do not, so that `broker_name` must be given
    """

    queue: str
    identity: str | None = None
    retention: float | None = None
    hold_max: float | None = None
    receives_max: int | None = None
    ordered: bool = False
    broker: str | None = None
    broker_doubt: str = ""
    needs_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a consumer, checked.

    name          the consumer's name: its operation, and with the queue its scope
    key           where the key of a message is: see message_key.py
    request       what must be the same in every message of one key: "body", a function, or None
    concurrency   how many handlers run at the same time
    batch         how many messages are taken, and claimed, at a time; at least `concurrency`
    max_tries     after this many failed tries a message becomes a dead letter
    backoff       how long to wait after the first failed try; doubled with each, up to backoff_max
    stop_timeout  for how long a stop waits for running handlers
    broker_name   your own name for the broker, if two of them have a queue of this name and share
                  the store, or if a broker was moved: see broker_identity.py
    options       the fields of Policy for this consumer
    """

    name: str
    key: KeyChoice
    request: RequestChoice = "body"
    concurrency: int = CONCURRENCY_DEFAULT
    batch: int | None = None
    max_tries: int = MAX_TRIES_DEFAULT
    backoff: Duration = BACKOFF_DEFAULT
    backoff_max: Duration = BACKOFF_MAX_DEFAULT
    stop_timeout: Duration = STOP_TIMEOUT_DEFAULT
    broker_name: str | None = None
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError("name= must be the consumer's name, such as 'shipping'")
        check_text("name", self.name, OPERATION_MAX_CHARS)
        key_reader(self.key, "checked")
        if self.request not in ("body", None) and not callable(self.request):
            raise ConfigurationError(
                f"request={self.request!r} must be 'body', a function of the message, or None"
            )
        _check_count("concurrency", self.concurrency, CONCURRENCY_MAX)
        if self.batch is not None:
            _check_count("batch", self.batch, BATCH_MAX)
        _check_count("max_tries", self.max_tries, MAX_TRIES_MAX)
        for name in ("backoff", "backoff_max", "stop_timeout"):
            microseconds(getattr(self, name), name=name)
        if self.broker_name is not None:
            if not isinstance(self.broker_name, str) or not self.broker_name.strip():
                raise ConfigurationError("broker_name= must be a name of the broker, such as 'eu'")
            check_text("broker_name", self.broker_name, BROKER_NAME_MAX_CHARS)
        unknown = self.options.keys() - set(OPTION_NAMES)
        if unknown:
            raise ConfigurationError(
                f"unknown option {', '.join(sorted(unknown))} of consumer {self.name!r}"
            )

    @property
    def backoff_s(self) -> tuple[float, float]:
        """The first and the longest wait between tries, in seconds."""
        first = microseconds(self.backoff, name="backoff")
        most = microseconds(self.backoff_max, name="backoff_max")
        return first / _SECOND, most / _SECOND

    @property
    def stop_timeout_s(self) -> float:
        return microseconds(self.stop_timeout, name="stop_timeout") / _SECOND

    @property
    def batch_size(self) -> int:
        return max(self.batch or BATCH_DEFAULT, self.concurrency)


class ConsumerPlan(NamedTuple):
    """The settings of a consumer on its queue: what each message is run with."""

    settings: ConsumerSettings
    facts: BrokerFacts
    scope: str
    origin: Origin
    policy: Policy
    options: Mapping[str, Any]
    key_of: Callable[[Message], str]
    request_of: Callable[[Message], Any]

    @property
    def lease_s(self) -> float:
        return self.policy.times.lease / _SECOND


class Policies(Protocol):
    """What a plan asks of the engine: its policy, and that of an operation, checked against the
    store."""

    @property
    def policy(self) -> Policy: ...

    def policy_for(
        self, operation: str, options: Mapping[str, Any], *, in_transaction: bool = False
    ) -> Policy: ...


def plan_of(
    settings: ConsumerSettings,
    facts: BrokerFacts,
    once: Policies,
    scope: str,
    *,
    in_transaction: bool = False,
) -> ConsumerPlan:
    """The plan of a consumer for a queue; raises ConfigurationError if it would not be safe, or if
    the store cannot keep what it asks for: every message would fail. `scope` is that of
    broker_identity.py."""
    options = {**settings.options, "wait": settings.options.get("wait", "0s")}
    options |= _keep_option(settings, facts, once.policy)
    policy = once.policy_for(settings.name, options, in_transaction=in_transaction)
    _check_receives(settings, facts)
    _check_hold(settings, facts, policy)
    return ConsumerPlan(
        settings,
        facts,
        scope,
        Origin(SURFACE, shown(facts.queue, ROUTE_MAX_CHARS)),
        policy,
        options,
        key_reader(settings.key, facts.identity),
        _request_reader(settings.request),
    )


def _keep_option(
    settings: ConsumerSettings, facts: BrokerFacts, defaults: Policy
) -> dict[str, Duration]:
    """A key must be remembered for as long as its message can come back. Where nothing was given,
    `keep` is made long enough; what was given and is too short is refused."""
    given = settings.options.get("keep")
    keep = microseconds(given, name="keep") if given is not None else defaults.times.keep
    what = f"consumer {settings.name!r} of {facts.queue!r}"
    if facts.retention is None:
        return {}
    if math.isinf(facts.retention):
        if given is not None:
            return {}  # whoever says how long has thought about it
        _log.warning(
            "%s: no limit is known for how long a message can come back, and a key is remembered "
            "for %s after its end; a message that comes back later is handled again. Set keep= to "
            "the longest time after which messages may come back",
            what,
            human(keep),
        )
        return {}
    needed = min(math.ceil(facts.retention * _SECOND), KEEP_MAX_US)
    if keep >= needed:
        return {}
    if given is not None:
        raise ConfigurationError(
            f"{what}: keep={given!r} is shorter than the {human(needed)} for which the broker can "
            "deliver a message again; after `keep` it would be handled a second time. Leave "
            "keep= out, or give at least that"
        )
    return {"keep": timedelta(microseconds=needed)}


def _check_receives(settings: ConsumerSettings, facts: BrokerFacts) -> None:
    """Each delivery counts for the broker, also one that only finds the key held elsewhere."""
    most, tries = facts.receives_max, settings.max_tries
    if most is None or most > tries:
        return
    lower = f", or set max_tries={most - 1} or less" if most > 1 else ""
    raise ConfigurationError(
        f"consumer {settings.name!r}: the broker gives up a message of {facts.queue!r} after "
        f"delivery {most}, before max_tries={tries} are over, and a delivery that only meets a "
        f"running attempt counts too. Raise that limit (maxReceiveCount, delivery-limit) to "
        f"{2 * tries} or more{lower}"
    )


def _check_hold(settings: ConsumerSettings, facts: BrokerFacts, policy: Policy) -> None:
    if facts.hold_max is not None and policy.times.lease > facts.hold_max * _SECOND:
        raise ConfigurationError(
            f"consumer {settings.name!r}: lease={policy.lease!r} is longer than the "
            f"{facts.hold_max:g} s for which the broker lets a message of {facts.queue!r} be held"
        )


def check_engine(once: object, kind: type) -> None:
    """Refuse what is not the engine that this consumer needs, before a message meets it."""
    if not isinstance(once, kind):
        given = repr(once) if isinstance(once, str) else f"of type {type(once).__name__}"
        raise ConfigurationError(f"once must be of type {kind.__name__}, and is {given}")


def _check_count(name: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigurationError(f"{name}={value!r} must be a whole number from 1 to {most}")


def check_text(what: str, value: str, most: int) -> None:
    """Refuse now what the engine would refuse with each message, which would be a dead letter."""
    if len(value) > most or not value.isprintable():
        raise ConfigurationError(
            f"{what} is {value[:most]!r}; allowed are at most {most} characters, all printable"
        )


def _request_reader(choice: RequestChoice) -> Callable[[Message], Any]:
    if choice is None:
        return lambda message: None
    if callable(choice):
        return choice
    return lambda message: message.body
