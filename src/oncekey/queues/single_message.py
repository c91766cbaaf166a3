"""`consume`: one message of any queue, from its key to what becomes of it.

For queues that this package has no adapter for. The caller receives, calls `consume`, and does with
the message what the disposition says.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, overload

from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.message_handler import AsyncMessageHandler
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.broker_identity import KnownScopes, async_bound_scope, bound_scope
from oncekey.queues.consumer_settings import (
    BACKOFF_DEFAULT,
    BACKOFF_MAX_DEFAULT,
    MAX_TRIES_DEFAULT,
    BrokerFacts,
    ConsumerSettings,
    RequestChoice,
    check_engine,
    plan_of,
)
from oncekey.queues.disposition import Disposition, give_back
from oncekey.queues.handler_call import HandlerCall
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry

_scopes = KnownScopes()


@overload
def consume(
    once: Once,
    message_id: str,
    body: bytes,
    handler: Callable[..., Any],
    *,
    name: str,
    queue: str,
    headers: Mapping[str, str] | None = None,
    request: RequestChoice = "body",
    max_tries: int = MAX_TRIES_DEFAULT,
    backoff: Duration = BACKOFF_DEFAULT,
    backoff_max: Duration = BACKOFF_MAX_DEFAULT,
    broker_name: str | None = None,
    **options: Any,
) -> Disposition: ...
@overload
def consume(
    once: AsyncOnce,
    message_id: str,
    body: bytes,
    handler: Callable[..., Awaitable[Any]],
    *,
    name: str,
    queue: str,
    headers: Mapping[str, str] | None = None,
    request: RequestChoice = "body",
    max_tries: int = MAX_TRIES_DEFAULT,
    backoff: Duration = BACKOFF_DEFAULT,
    backoff_max: Duration = BACKOFF_MAX_DEFAULT,
    broker_name: str | None = None,
    **options: Any,
) -> Awaitable[Disposition]: ...
def consume(
    once: Once | AsyncOnce,
    message_id: str,
    body: bytes,
    handler: Callable[..., Any],
    *,
    name: str,
    queue: str,
    headers: Mapping[str, str] | None = None,
    request: RequestChoice = "body",
    max_tries: int = MAX_TRIES_DEFAULT,
    backoff: Duration = BACKOFF_DEFAULT,
    backoff_max: Duration = BACKOFF_MAX_DEFAULT,
    broker_name: str | None = None,
    **options: Any,
) -> Disposition | Awaitable[Disposition]:
    """Run `handler(message)` at most once for this message, and say what becomes of the message.
    With an AsyncOnce the handler is async, and the result is awaited.

    `message_id` is the key: a business id, or an id that the queue gives to no other message, ever.
    `name` is that of the consumer and, with `queue`, the scope of its keys; two queues of the same
    name on two brokers need a `broker_name` each. `headers` with a mark of a redrive open a failed
    key again. `options` are fields of Policy. Nothing is raised that the handler raises: it is in
    the disposition.
    """
    settings = ConsumerSettings(
        name=name,
        key=_id_of,
        request=request,
        max_tries=max_tries,
        backoff=backoff,
        backoff_max=backoff_max,
        broker_name=broker_name,
        options=options,
    )
    if not isinstance(body, bytes):
        raise ConfigurationError(f"body must be the message's bytes, not a {type(body).__name__}")
    if not isinstance(once, AsyncOnce):
        check_engine(once, Once)
    named = {key.lower(): value for key, value in (headers or {}).items()}
    if not all(isinstance(value, str) for value in named.values()):
        raise ConfigurationError("headers must be text; leave out or decode the others")
    message = Message(body=body, queue=queue, headers=named, delivery_id=message_id)
    entry = Entry(message, time.monotonic())
    call = HandlerCall(handler, is_async=isinstance(once, AsyncOnce), in_transaction=False)
    if isinstance(once, AsyncOnce):
        return _handle_async(once, call, settings, entry)
    facts = BrokerFacts(queue)
    scope = _scopes.find(once, settings, facts)
    if scope is None:
        try:
            scope = bound_scope(once, settings, facts)
        except StoreUnavailable as error:
            return give_back(error)
        _scopes.note(once, settings, facts, scope)
    plan = plan_of(settings, facts, once, scope)
    return MessageHandler(once, call, plan).handle(entry)


async def _handle_async(
    once: AsyncOnce, call: HandlerCall, settings: ConsumerSettings, entry: Entry
) -> Disposition:
    facts = BrokerFacts(entry.message.queue)
    scope = _scopes.find(once, settings, facts)
    if scope is None:
        try:
            scope = await async_bound_scope(once, settings, facts)
        except StoreUnavailable as error:
            return give_back(error)
        _scopes.note(once, settings, facts, scope)
    plan = plan_of(settings, facts, once, scope)
    return await AsyncMessageHandler(once, call, plan).handle(entry)


def _id_of(message: Message) -> str:
    return message.delivery_id
