"""The brokers whose client libraries fail in test_client_faults.py: how each is watched, and which
of its calls stand for receiving, settling, extending and opening."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import aiokafka.admin
import aiormq
import pytest
import redis
import redis.asyncio
from aio_pika.tools import CallbackCollection
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.select_connection import IOLoop
from tests.queues import sqs_queues
from tests.queues.client_errors import errors_of
from tests.queues.client_seams import Seam
from tests.queues.kafka_queues import KafkaQueues
from tests.queues.kafka_topics import Topic
from tests.queues.rabbit_queues import RabbitQueues
from tests.queues.sqs_queues import SqsQueues
from tests.queues.stream_queues import StreamQueues
from tests.support import kafka_servers, redis_stores
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers.sqs_server import sqs

from oncekey import AsyncOnce
from oncekey.queues.kafka import (
    aiokafka_broker,
    confluent_client,
    confluent_member,
    program,
)
from oncekey.queues.rabbitmq import pika_session
from oncekey.queues.redis_streams import program as stream_program
from oncekey.queues.redis_streams.client import SCRIPT_NAMES, script
from oncekey.queues.sqs import AsyncSQSConsumer


@dataclass(frozen=True)
class FaultCase:
    """A broker over one client library.

    queues     sends, and makes consumers: see consumer_kills.py
    modules    where the library has its exceptions
    watch      has a seam watch the library
    calls      the call that stands for each kind of failure
    refusals   by kind, the classes that end a consumer, since a new connection cures nothing
    answers    the classes that a call may raise as an answer, which is no fault and not logged
    cut        the kind of failure that ends a connection
    provoke    is called before a call is to fail, so that it is made
    """

    is_async: bool
    queues: Any
    modules: tuple[str, ...]
    watch: Callable[[Seam], None]
    calls: Mapping[str, str]
    refusals: Mapping[str, frozenset[str]] = field(default_factory=dict)
    answers: frozenset[str] = frozenset()
    cut: str = "receive"
    provoke: Callable[[], object] = lambda: None

    def errors(self) -> list[BaseException]:
        return errors_of(*self.modules, is_async=self.is_async)


# --- RabbitMQ -------------------------------------------------------------------------------------


def _watch_pika(seam: Seam) -> None:
    for cls in (BlockingConnection, BlockingChannel, IOLoop):
        seam.watch_class(cls)


def _watch_aio_pika(seam: Seam) -> None:
    seam.watch_function(aio_pika, "connect")
    for cls in (
        *(aio_pika.Connection, aio_pika.Channel, aio_pika.Exchange),
        *(aiormq.Channel, CallbackCollection),
    ):
        seam.watch_class(cls)


def pika_case(patch: pytest.MonkeyPatch) -> FaultCase:
    calls = {
        "receive": "BlockingConnection.process_data_events",
        "settle": "BlockingChannel.basic_ack",
        "open": "BlockingConnection()",
    }
    patch.setattr(pika_session, "_IDLE_S", 0.1)  # a thread that is not woken looks around after it
    queues = RabbitQueues(rabbitmq().url)
    return FaultCase(False, queues, ("pika.exceptions",), _watch_pika, calls, cut="settle")


def aio_pika_case(patch: pytest.MonkeyPatch) -> FaultCase:
    calls = {
        "receive": "Channel.basic_consume",  # deliveries come by themselves after it
        "settle": "Channel.basic_ack",
        "open": "connect",
    }
    modules = ("aio_pika.exceptions", "aiormq.exceptions")
    return FaultCase(
        True, RabbitQueues(rabbitmq().url), modules, _watch_aio_pika, calls, cut="settle"
    )


# --- Kafka ----------------------------------------------------------------------------------------


class Topics(KafkaQueues):
    """Topics with a group each, so that the consumers of two tests never wait for each other."""

    # The mock lets a member that comes again wait for as long as this exceeds a second.
    session_ms = 1_100

    def _topic(self, queue: str) -> Topic:
        if queue not in self._topics:
            self._topics[queue] = Topic(self._client, queue, f"of-{queue}", is_fresh=True)
        return self._topics[queue]


def _hurry_kafka(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(program, "FORWARD_RETRY_S", 0.01)
    patch.setattr(program, "COMMIT_RETRY_S", 0.01)
    for module in (confluent_member, aiokafka_broker):
        patch.setattr(module, "POLL_S", 0.01)


def _watch_confluent(seam: Seam) -> None:
    seam.watch_type(confluent_member, "Consumer")
    seam.watch_type(confluent_member, "Producer")
    seam.watch_type(confluent_client, "AdminClient")


def _watch_aiokafka(seam: Seam) -> None:
    for cls in (aiokafka.AIOKafkaConsumer, aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaClient):
        seam.watch_class(cls)
    seam.watch_class(aiokafka.admin.AIOKafkaAdminClient)


def confluent_case(patch: pytest.MonkeyPatch) -> FaultCase:
    """On the real broker."""
    _hurry_kafka(patch)
    calls = {
        "receive": "Consumer.poll",
        "settle": "Consumer.commit",
        "write": "Producer.produce",
        "open": "Consumer.subscribe",
    }
    modules = ("confluent_kafka.error", "confluent_kafka")
    return FaultCase(False, Topics(kafka_servers.kafka().client), modules, _watch_confluent, calls)


def aiokafka_case(patch: pytest.MonkeyPatch) -> FaultCase:
    _hurry_kafka(patch)
    calls = {
        "receive": "AIOKafkaConsumer.getmany",
        "settle": "AIOKafkaConsumer.commit",
        "write": "AIOKafkaProducer.send_and_wait",
        "open": "AIOKafkaProducer.start",
    }
    refusals = {"receive": frozenset({"NoOffsetForPartitionError"})}
    return FaultCase(
        True,
        Topics(kafka_servers.headers_kafka().client),
        ("aiokafka.errors",),
        _watch_aiokafka,
        calls,
        refusals,
    )


# --- SQS ------------------------------------------------------------------------------------------

_SQS_CALLS = {
    "receive": "SQS.receive_message",
    "settle": "SQS.delete_message_batch",
    "extend": "SQS.change_message_visibility_batch",
}
_NO_CREDENTIALS = frozenset(
    (
        "CredentialRetrievalError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    )
)
_SQS_REFUSALS = {
    "receive": _NO_CREDENTIALS | {"ParamValidationError", "ValidationError"},
    "settle": _NO_CREDENTIALS,
    "extend": _NO_CREDENTIALS,
}


class _WatchedContext:
    """A client of aiobotocore that is watched as soon as it is opened: its class is made then."""

    def __init__(self, context: Any, seam: Seam) -> None:
        self._context = context
        self._seam = seam

    async def __aenter__(self) -> Any:
        client = await self._context.__aenter__()
        self._seam.watch_class(type(client))
        return client

    async def __aexit__(self, *error: object) -> None:
        await self._context.__aexit__(*error)


class _WatchedSqs(SqsQueues):
    seam: Seam

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> AsyncSQSConsumer:
        client = self._session.create_client("sqs", **self._options)
        watched = _WatchedContext(client, self.seam)
        return AsyncSQSConsumer(once, handler, queue, client=watched, **options)


def _sqs_case(patch: pytest.MonkeyPatch, is_async: bool) -> FaultCase:
    patch.setattr(sqs_queues, "WAITING_MAX", 1_000)  # a consumer that has ended takes none of them
    queues = _WatchedSqs(sqs().options())

    def watch(seam: Seam) -> None:
        queues.seam = seam
        if not is_async:
            seam.watch_class(type(queues._client))

    modules = ("botocore.exceptions",)
    return FaultCase(is_async, queues, modules, watch, _SQS_CALLS, _SQS_REFUSALS)


# --- Redis Streams --------------------------------------------------------------------------------

_REDIS_CALLS = {
    "receive": "EVALSHA take",
    "wait": "XREADGROUP",
    "settle": "EVALSHA settle",
    "extend": "EVALSHA extend",
}
_REDIS_REFUSALS: frozenset[str] = frozenset()


def _command(text: str, args: tuple[Any, ...]) -> str:
    """The command of a call, and which script it runs."""
    if not text.endswith(".execute_command"):
        return text
    scripts = {script(name).digest: f"EVALSHA {name}" for name in SCRIPT_NAMES}
    return scripts.get(args[2], str(args[1])) if args[1] == "EVALSHA" else str(args[1])


def _forget_scripts(url: str) -> None:
    """Make the server forget its scripts, so that the next one is sent by its text."""
    with redis.Redis.from_url(url) as client:
        client.script_flush()


def _redis_case(patch: pytest.MonkeyPatch, is_async: bool) -> FaultCase:
    patch.setattr(stream_program, "TIDY_EVERY_S", 0.0)
    cls: type = redis.asyncio.Redis if is_async else redis.Redis
    server = redis_stores.valkey()
    return FaultCase(
        is_async,
        StreamQueues(server.url()),
        ("redis.exceptions",),
        lambda seam: seam.watch_class(cls, _command),
        _REDIS_CALLS,
        dict.fromkeys(_REDIS_CALLS, _REDIS_REFUSALS),
        answers=frozenset({"NoScriptError"}),
        provoke=lambda: _forget_scripts(server.url()),
    )


CASES: dict[str, Callable[[pytest.MonkeyPatch], FaultCase]] = {
    "rabbitmq-pika": pika_case,
    "rabbitmq-aio-pika": aio_pika_case,
    "kafka-confluent": confluent_case,
    "kafka-aiokafka": aiokafka_case,
    "sqs-boto3": lambda patch: _sqs_case(patch, is_async=False),
    "sqs-aiobotocore": lambda patch: _sqs_case(patch, is_async=True),
    "redis-sync": lambda patch: _redis_case(patch, is_async=False),
    "redis-async": lambda patch: _redis_case(patch, is_async=True),
}
