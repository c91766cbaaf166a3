"""What FastStream's own objects tell of a message: its queue and broker, its handler, and whether
somebody waits for what that returns.

Some of it is kept in attributes that FastStream does not document. Where one is missing, the answer
is the careful one.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from faststream import StreamMessage

from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.settings import cluster_doubt, parse_cluster, virtual_host

# The only package of FastStream whose broker keeps a rejected message, and tells which one it is.
RABBIT: Final = "faststream.rabbit"


def message_of(msg: StreamMessage[Any], queue: str) -> Message:
    headers = {
        str(name).lower(): value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in msg.headers.items()
        if isinstance(value, str | bytes)
    }
    return Message(body=msg.body, queue=queue, headers=headers, delivery_id=msg.message_id, raw=msg)


def queue_of(subscriber: Any, msg: StreamMessage[Any]) -> str:
    """The queue, topic or channel, as FastStream's own log calls it."""
    context = subscriber.get_log_context(msg)
    for name in ("queue", "topic", "channel", "stream", "subject"):
        if context.get(name):
            return str(context[name])
    return ""


def handler_of(call_next: Any) -> Any:
    """The handler that FastStream has chosen for a message: the middlewares after this one stand
    around it, each as a partial of the next."""
    while isinstance(call_next, partial) and call_next.args:
        call_next = call_next.args[0]
    return getattr(call_next, "__self__", None)


def function_of(handler: Any) -> Any:
    """The user's function, None if this version of FastStream keeps it elsewhere."""
    return getattr(handler, "_original_call", None)


def has_recipients(msg: StreamMessage[Any], handler: Any, subscriber: Any) -> bool:
    """True if somebody gets what the handler returns, also if that is not known."""
    is_asked = bool(msg.reply_to) and not getattr(subscriber, "_no_reply", False)
    return is_asked or bool(getattr(handler, "_publishers", True))


def kind_of(subscriber: Any) -> str:
    return ".".join(type(subscriber).__module__.split(".")[:2])


def facts_of(subscriber: Any, queue: str, raw: Any) -> BrokerFacts:
    """What is known of a queue and its broker: a message of aio-pika has its connection, and that
    has what RabbitMQ said of itself. Those of FastStream's test broker have none."""
    kind = kind_of(subscriber)
    if kind != RABBIT:
        doubt = (
            f"the messages of {kind} do not tell which broker they come from, so a queue or topic "
            "of the same name on another one would share its keys, and its messages would be "
            "removed unhandled. Give broker_name= your own name for the broker, such as "
            "broker_name='eu'"
        )
        return BrokerFacts(queue, broker=kind, broker_doubt=doubt, needs_name=True)
    if raw is None or type(raw).__module__.startswith("faststream."):
        return BrokerFacts(queue, broker=kind)
    connection = raw.channel.connection
    cluster, host = parse_cluster(connection.server_properties), virtual_host(str(connection.url))
    doubt, _ = cluster_doubt(cluster, addresses=1)
    broker = identity_of(kind, vhost=host, cluster=cluster)
    return BrokerFacts(queue, broker=broker, broker_doubt=doubt)
