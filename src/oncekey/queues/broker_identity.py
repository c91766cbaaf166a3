"""Which broker the keys of a consumer belong to, so that two brokers never share one scope.

The scope of a consumer is NAME/QUEUE. A queue of the same name on another broker would find its
keys there, and its messages would be removed as duplicates that nobody has handled. So the first
start remembers in the store which broker the scope belongs to, as that tells itself: never by an
address, which changes. A consumer of another broker is refused, until somebody has said which case
it is:

    broker_name=                          the scope
    ------------------------------------- ---------------------------------------------------------
    not given, the broker as remembered   NAME/QUEUE
    not given, another broker             refused
    what is remembered: the same broker,  NAME/QUEUE: its keys go on
    which was moved or renamed
    any other name                        NAME/QUEUE on BROKER_NAME
    not given, and the broker cannot be   refused
    told from another one

An identity is text such as `rabbitmq vhost=/ cluster=production`. What a broker does not tell is
left out, and not compared. The flow is a generator, driven by threads and by tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from weakref import WeakKeyDictionary

from oncekey.core.codec import JSON
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Level
from oncekey.core.identity import SCOPE_MAX_CHARS
from oncekey.core.origin import OWN_OPERATIONS, ROUTE_MAX_CHARS, Origin, shown
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.consumer_settings import SURFACE, BrokerFacts, ConsumerSettings, check_text

# The key that remembers which broker a scope belongs to. It stays for as long as keys can.
OPERATION: Final = OWN_OPERATIONS + "broker"
KEY: Final = "broker"
KEEP: Final = "3650d"
WAIT: Final = "10s"  # for another process that begins at the same time
UNTOLD: Final = "unknown"
_SAFE: Final = "/:@.-_"


class OwnerOf(NamedTuple):
    """Which broker a scope belongs to; the result is its identity, or None."""

    scope: str


class Bind(NamedTuple):
    """Remember that a scope belongs to this broker, unless it belongs to one already; the result
    is the one that it belongs to."""

    scope: str
    broker: str
    queue: str


ScopeFlow = Generator[OwnerOf | Bind, Any, str]


def identity_of(kind: str, **parts: str | None) -> str:
    """The identity of a broker; parts that it does not tell are None or empty."""
    told = (f"{name}={quote(value, safe=_SAFE)}" for name, value in parts.items() if value)
    return " ".join((kind, *told))


def are_same(one: str, other: str) -> bool:
    """True unless the two identities contradict each other."""
    mine, others = _parts(one), _parts(other)
    return all(others.get(name, value) == value for name, value in mine.items())


def _parts(identity: str) -> dict[str, str]:
    kind, *parts = identity.split(" ")
    found = dict(part.partition("=")[::2] for part in parts)
    return {"": kind, **found}


def scope_flow(settings: ConsumerSettings, facts: BrokerFacts) -> ScopeFlow:
    """The scope of a consumer on its queue; raises ConfigurationError if that is another
    broker's."""
    plain = f"{settings.name}/{facts.queue}"
    check_text("the consumer's name with its queue", plain, SCOPE_MAX_CHARS)
    given = settings.broker_name
    if given is None and facts.needs_name:
        raise ConfigurationError(f"consumer {settings.name!r}: {facts.broker_doubt}")
    if given is None:
        scope, broker = plain, facts.broker or UNTOLD
    elif (yield OwnerOf(plain)) == given:
        return plain
    else:
        scope, broker = f"{plain} on {given}", f"named {quote(given, safe=_SAFE)}"
        check_text("the consumer's name with its queue and broker_name", scope, SCOPE_MAX_CHARS)
    owner: str = yield Bind(scope, broker, facts.queue)
    if not are_same(owner, broker):
        raise ConfigurationError(
            f"consumer {settings.name!r}: its keys of {facts.queue!r} in this store belong to the "
            f"broker {owner!r}, and this one is {broker!r}. Messages of two brokers would be taken "
            "for duplicates of each other, and removed unhandled. For another broker give "
            "broker_name= a name of its own, such as broker_name='eu'; if it is the same one, "
            f"which was moved or renamed, give broker_name={owner!r}, and its keys go on"
            + (f". {facts.broker_doubt}" if facts.broker_doubt else "")
        )
    return scope


def bound_scope(once: Once, settings: ConsumerSettings, facts: BrokerFacts) -> str:
    """Run the flow, in threads."""
    flow, result = scope_flow(settings, facts), None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            return str(stop.value)
        if isinstance(effect, OwnerOf):
            status = once.get(OPERATION, KEY, scope=effect.scope, codec=JSON)
            result = status.value if status is not None else None
        else:
            result = once.run(**_arguments(effect), body=_broker_of(effect)).value


async def async_bound_scope(once: AsyncOnce, settings: ConsumerSettings, facts: BrokerFacts) -> str:
    """Run the flow, in tasks."""
    flow, result = scope_flow(settings, facts), None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            return str(stop.value)
        if isinstance(effect, OwnerOf):
            status = await once.get(OPERATION, KEY, scope=effect.scope, codec=JSON)
            result = status.value if status is not None else None
        else:
            result = (await once.run(**_arguments(effect), body=_async_broker_of(effect))).value


def _arguments(bind: Bind) -> dict[str, Any]:
    return {
        "operation": OPERATION,
        "key": KEY,
        "scope": bind.scope,
        "codec": JSON,
        "origin": Origin(SURFACE, shown(bind.queue, ROUTE_MAX_CHARS)),
        "keep": KEEP,
        "wait": WAIT,
        "retry_safe": True,
        # It has no effect to be protected, and must not be refused because the engine's operations
        # run in transactions only.
        "require": Level.BEST_EFFORT,
    }


def _broker_of(bind: Bind) -> Callable[[object], str]:
    return lambda attempt: bind.broker


def _async_broker_of(bind: Bind) -> Callable[[object], Awaitable[str]]:
    async def broker(attempt: object) -> str:
        return bind.broker

    return broker


class KnownScopes:
    """The scopes that were bound for an engine, for callers that ask with every message."""

    def __init__(self) -> None:
        self._of: MutableMapping[object, dict[tuple[str, str, str | None], str]]
        self._of = WeakKeyDictionary()

    def find(self, once: object, settings: ConsumerSettings, facts: BrokerFacts) -> str | None:
        return self._of.get(once, {}).get(_name(settings, facts))

    def note(
        self, once: object, settings: ConsumerSettings, facts: BrokerFacts, scope: str
    ) -> None:
        self._of.setdefault(once, {})[_name(settings, facts)] = scope


def _name(settings: ConsumerSettings, facts: BrokerFacts) -> tuple[str, str, str | None]:
    return settings.name, facts.queue, settings.broker_name
