"""One connection of pika, and the thread that owns it.

pika's connections belong to one thread. Here that thread does nothing else, so that RabbitMQ's
heartbeats are answered however long handlers run. Other threads hand it programs and wait for
their results; deliveries wait in a buffer until somebody takes them. A session that has ended stays
ended: RabbitMQ delivers again what it left unsettled, and the broker opens a new one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    NackError,
    UnroutableError,
)

from oncekey.core.errors import OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.message import COPIED, STREAM, Delivery, Letter, message_of
from oncekey.queues.rabbitmq.program import (
    NO_QUEUE,
    NOT_FOUND,
    NOT_TAKEN,
    REFUSALS,
    Ack,
    AckTaken,
    ChannelCall,
    ChannelProgram,
    CountMessages,
    Declare,
    IsStream,
    Program,
    Publish,
    RabbitRefused,
    Requeue,
    Subscribe,
    Take,
    Unsubscribe,
    reason_of,
    unavailable,
)
from oncekey.queues.rabbitmq.settings import (
    CONNECT_TIMEOUT_S,
    PUBLISH_TIMEOUT_S,
    RabbitSettings,
    Version,
    parse_cluster,
    parse_version,
)

T = TypeVar("T")
_IDLE_S: Final = 5.0  # the thread looks around this often; it is woken when there is work
_log = logging.getLogger("oncekey")


class PikaSession:
    """A connection, from its opening to its end. `program` has the programs that `run` takes."""

    program: ChannelProgram
    version: Version
    cluster: str | None

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._changed = threading.Condition()  # guards the buffer, the jobs and the end
        self._buffer: deque[Message] = deque()
        self._jobs: deque[tuple[Program[Any], Future[Any]]] = deque()
        self._ended: BaseException | None = None
        self._is_closing = False
        self._connection: BlockingConnection | None = None
        self._tag = ""
        opened: Future[None] = Future()
        thread = threading.Thread(
            target=self._main, args=(opened,), name="oncekey-rabbitmq", daemon=True
        )
        thread.start()
        opened.result()

    @property
    def is_open(self) -> bool:
        return self._ended is None and not self._is_closing

    # --- for other threads ----------------------------------------------------------------------

    def run(self, program: Program[T]) -> T:
        """Have the thread run a program; its result."""
        result: Future[T] = Future()
        with self._changed:
            if self._ended is not None:
                raise unavailable(self._ended) from self._ended
            self._jobs.append((program, result))
            self._wake()
        return result.result()

    def take(self, most: int, wait: float) -> list[Message]:
        """Messages that were delivered, after waiting for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._buffer or self._ended is not None, wait)
            if not self._buffer and self._ended is not None:
                raise unavailable(self._ended) from self._ended
            return [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]

    def close(self) -> None:
        """Give back what is not settled, and end the connection."""
        try:
            self.run(self.program.leave())
        except BrokerUnavailable:
            return  # it has ended already
        with self._changed:
            self._is_closing = True
            self._wake()
            self._changed.wait_for(lambda: self._ended is not None, CONNECT_TIMEOUT_S)

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            try:
                connection.add_callback_threadsafe(_nothing)
            except Exception as error:  # the thread is about to find that out itself
                _log.info("RabbitMQ: the connection was not woken: %s", reason_of(error))

    # --- the thread -----------------------------------------------------------------------------

    def _main(self, opened: Future[None]) -> None:
        try:
            self._open()
        except BaseException as error:
            self._end(error)
            failed = unavailable(error)
            failed.__cause__ = error
            opened.set_exception(failed)
            return
        opened.set_result(None)
        try:
            self._serve()
        except BaseException as error:
            self._end(error)
        else:
            self._end(BrokerUnavailable("the session is closed"))

    def _open(self) -> None:
        nodes = [_parameters(url) for url in self._settings.shuffled()]
        self._connection = connection = BlockingConnection(nodes)
        properties = connection._impl.server_properties
        self.version = parse_version(properties)
        self.cluster = parse_cluster(properties)
        self.program = ChannelProgram(self._settings.names, self.version)
        self._work = connection.channel()
        self._work.add_on_cancel_callback(self._cancelled)
        self._letters = self._confirming_channel()

    def _confirming_channel(self) -> BlockingChannel:
        assert self._connection is not None
        channel = self._connection.channel()
        channel.confirm_delivery()
        return channel

    def _serve(self) -> None:
        assert self._connection is not None
        while not self._is_closing:
            self._connection.process_data_events(time_limit=_IDLE_S)
            if not self._work.is_open:
                raise BrokerUnavailable("RabbitMQ closed the channel")
            while self._jobs:
                self._run_job(*self._jobs.popleft())

    def _run_job(self, program: Program[Any], result: Future[Any]) -> None:
        value: Any = None
        try:
            while True:
                try:
                    call = program.send(value)
                except StopIteration as stop:
                    result.set_result(stop.value)
                    return
                value = self._perform(call)
        except BaseException as error:
            is_ours = isinstance(error, OncekeyError)
            result.set_exception(error if is_ours else unavailable(error))
            if not is_ours or is_fault(error):
                raise  # what is half done is delivered again

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._ended = error
            self._buffer.clear()  # RabbitMQ delivers them again
            jobs, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for _, result in jobs:
            result.set_exception(unavailable(error))
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.is_open:
                self._give_back()
                connection.close()
        except Exception as failure:  # it is gone, and somebody waits for the end of this thread
            _log.info("RabbitMQ: the connection was not closed well: %s", reason_of(failure))
        with suppress(Exception):
            connection._cleanup()  # pika leaves the sockets of a lost connection open

    def _give_back(self) -> None:
        """Closed over its messages, the connection would count as a failed delivery of each."""
        if hasattr(self, "_work") and self._work.is_open and self.program.unsettled:
            self._work.basic_nack(0, multiple=True, requeue=True)

    # --- the calls ------------------------------------------------------------------------------

    def _perform(self, call: ChannelCall) -> Any:
        match call:
            case Ack(tag, up_to):
                self._work.basic_ack(tag, multiple=up_to)
            case Publish(letters):
                return [self._publish(letter) for letter in letters]
            case Requeue(tag):
                self._work.basic_nack(tag, multiple=tag == 0, requeue=True)
            case Subscribe(queue, prefetch):
                self._work.basic_qos(prefetch_count=prefetch)
                self._tag = self._work.basic_consume(queue, self._delivered)
            case Unsubscribe():
                self._work.basic_cancel(self._tag)
            case Declare(queue, arguments):
                self._on_own_channel(
                    lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments)
                )
            case CountMessages(queue):
                return self._count(queue)
            case IsStream(queue):
                return self._is_stream(queue)
            case Take(queue):
                method, properties, body = self._letters.basic_get(queue)
                return None if method is None else self._message(method, properties, body)
            case AckTaken(tag):
                self._letters.basic_ack(tag)
        return None

    def _publish(self, letter: Letter) -> str | None:
        properties = pika.BasicProperties(**letter.properties)
        try:
            with self._confirmed_in_time(), _unlogged_body():
                self._letters.basic_publish(
                    letter.exchange, letter.queue, letter.body, properties, mandatory=True
                )
        except UnroutableError:
            return NO_QUEUE
        except NackError:
            return NOT_TAKEN
        except ChannelClosedByBroker as error:
            # It is too large, or there is no such exchange.
            self._letters = self._confirming_channel()
            return reason_of(error)
        return None

    @contextmanager
    def _confirmed_in_time(self) -> Iterator[None]:
        """End the connection if RabbitMQ does not confirm: a queue that has lost most of its nodes
        says nothing, and pika itself would wait for it for ever."""
        assert self._connection is not None
        client = self._connection._impl
        late = AMQPConnectionError(f"no confirm within {PUBLISH_TIMEOUT_S:g} s")
        timer = client.ioloop.call_later(PUBLISH_TIMEOUT_S, lambda: client._terminate_stream(late))
        try:
            yield
        finally:
            client.ioloop.remove_timeout(timer)

    def _count(self, queue: str) -> int | None:
        try:
            with _expected_refusal():
                found = self._on_own_channel(lambda own: own.queue_declare(queue, passive=True))
        except RabbitRefused as error:
            cause = error.__cause__
            if isinstance(cause, ChannelClosedByBroker) and cause.reply_code == NOT_FOUND:
                return None
            raise
        count: int = found.method.message_count
        return count

    def _is_stream(self, queue: str) -> bool:
        try:
            self._perform(Declare(queue, STREAM))
        except RabbitRefused:
            return False
        return True

    def _on_own_channel(self, call: Callable[[BlockingChannel], Any]) -> Any:
        """RabbitMQ closes the channel of a call that it refuses, so such a call has its own."""
        assert self._connection is not None
        channel = self._connection.channel()
        try:
            return call(channel)
        except ChannelClosedByBroker as error:
            if error.reply_code not in REFUSALS:
                raise
            raise RabbitRefused(f"RabbitMQ: {error.reply_text}") from error
        finally:
            if channel.is_open:
                channel.close()

    # --- what comes by itself -------------------------------------------------------------------

    def _delivered(self, channel: object, method: Any, properties: Any, body: bytes) -> None:
        message = self._message(method, properties, body)
        self.program.unsettled[method.delivery_tag] = None
        with self._changed:
            self._buffer.append(message)
            self._changed.notify_all()

    def _message(self, method: Any, properties: Any, body: bytes) -> Message:
        delivery = Delivery(
            self,
            method.delivery_tag,
            {name: getattr(properties, name) for name in (*COPIED, "headers")},
            method.exchange,
            method.routing_key,
            method.redelivered,
            (method, properties),
        )
        return message_of(delivery, body, self._settings.queue)

    def _cancelled(self, frame: object) -> None:
        self.program.is_subscribed = False
        raise BrokerUnavailable(
            "RabbitMQ ended the subscription: a message was held for longer than the consumer "
            "timeout, or the queue was removed"
        )


def _parameters(url: str) -> pika.URLParameters:
    parameters = pika.URLParameters(url)
    if parameters.blocked_connection_timeout is None:
        # A node that is short of memory or disk takes no letters; its consumers go elsewhere.
        parameters.blocked_connection_timeout = PUBLISH_TIMEOUT_S
    return parameters


@contextmanager
def _expected_refusal() -> Iterator[None]:
    """Keep pika from warning of a channel that RabbitMQ closes: a queue that is not there is an
    answer, and no news for operators."""
    with _unlogged("pika.channel", lambda record: True):
        yield


@contextmanager
def _unlogged_body() -> Iterator[None]:
    """Keep pika from logging a letter that comes back because it has no queue: the beginning of its
    body is in that line, and what becomes of it is reported here anyway."""

    def has_body(record: logging.LogRecord) -> bool:
        return isinstance(record.args, tuple) and bytes in map(type, record.args)

    with _unlogged("pika.adapters.blocking_connection", has_body):
        yield


@contextmanager
def _unlogged(name: str, is_hidden: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Keep records of this thread from a logger. What other threads log is not touched."""
    me = threading.get_ident()
    logger = logging.getLogger(name)

    def is_logged(record: logging.LogRecord) -> bool:
        return record.thread != me or not is_hidden(record)

    logger.addFilter(is_logged)
    try:
        yield
    finally:
        logger.removeFilter(is_logged)


def _nothing() -> None:
    """Wake the thread."""
