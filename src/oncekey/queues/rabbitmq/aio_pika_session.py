"""One connection of aio-pika, for the tasks of one event loop.

Programs run one after the other; deliveries wait in a buffer until somebody takes them. A session
that has ended stays ended: RabbitMQ delivers again what it left unsettled, and the broker opens a
new one. (aio-pika's robust connections reopen by themselves, so that nobody would know which
deliveries are still valid; they are not used.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final, TypeVar

import aio_pika
import aiormq
from aio_pika.exceptions import (
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import CUT_OFF_S, is_fault
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.message import COPIED, STREAM, Delivery, Letter, message_of
from oncekey.queues.rabbitmq.program import (
    NO_QUEUE,
    NOT_TAKEN,
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
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    PUBLISH_TIMEOUT_S,
    RabbitSettings,
    Version,
    parse_cluster,
    parse_version,
)

T = TypeVar("T")
_log = logging.getLogger("oncekey")
# RabbitMQ itself has said no; a channel that was closed for another reason may open again.
_REFUSED: Final = (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)
_PAMQP: Final = {"type": "message_type"}  # the library below aio-pika has another name for it


class AioPikaSession:
    """A connection, from `open` to its end. `program` has the programs that `run` takes."""

    program: ChannelProgram
    version: Version
    cluster: str | None
    _connection: aio_pika.abc.AbstractConnection
    _work: aiormq.abc.AbstractChannel
    _letters: aio_pika.abc.AbstractChannel

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._buffer: deque[Message] = deque()
        self._changed = asyncio.Event()  # something was delivered, or the session has ended
        self._ended: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._tag = ""

    @property
    def is_open(self) -> bool:
        return self._ended is None

    async def open(self) -> None:
        """Connect; raises BrokerUnavailable."""
        try:
            await self._connect()
        except BaseException as error:
            self._note_end(error)
            # Nobody else knows this session; and whoever was cancelled waits for no broker.
            self._closing = asyncio.create_task(self._disconnect())
            await asyncio.wait((self._closing,), timeout=None if is_fault(error) else CUT_OFF_S)
            if not is_fault(error) or isinstance(error, BrokerUnavailable):
                raise
            raise unavailable(error) from error

    async def _connect(self) -> None:
        self._connection = connection = await self._first_connection(self._settings.shuffled())
        names = self._settings.names
        connection.close_callbacks.add(self._lost)
        assert connection.transport is not None
        properties = connection.transport.connection.server_properties
        self.version = parse_version(properties)
        self.cluster = parse_cluster(properties)
        self.program = ChannelProgram(names, self.version)
        work = await connection.channel(publisher_confirms=False)
        work.close_callbacks.add(self._lost)
        self._work = await work.get_underlay_channel()
        self._work.on_consumer_cancel_callbacks.add(self._cancelled)
        self._letters = await connection.channel(on_return_raises=True)

    async def _first_connection(self, urls: list[str]) -> aio_pika.abc.AbstractConnection:
        """A connection to the first node that answers."""
        for url in urls[:-1]:
            try:
                return await aio_pika.connect(url, timeout=CONNECT_TIMEOUT_S)
            except BaseException as error:
                if not is_fault(error):
                    raise
                _log.info("RabbitMQ: a node does not answer: %s", reason_of(error))
        return await aio_pika.connect(urls[-1], timeout=CONNECT_TIMEOUT_S)

    async def run(self, program: Program[T]) -> T:
        """Run a program; its result."""
        async with self._turn:
            value: Any = None
            while True:
                if self._ended is not None:
                    raise unavailable(self._ended)
                try:
                    value = await self._perform(program.send(value))
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                except BaseException as error:
                    await self._end_by(error)  # what is half done is delivered again
                    # It may have ended before the call failed: then it says why.
                    raise unavailable(self._ended or error) from error

    async def _end_by(self, error: BaseException) -> None:
        """End the session, since a call has failed with this error; raises a refusal, and what
        interrupts the caller, as they are."""
        if not is_fault(error):
            raise error
        await self._end(error)
        if isinstance(error, BrokerUnavailable):
            raise error

    async def take(self, most: int, wait: float) -> list[Message]:
        """Messages that were delivered, after waiting for the first."""
        if not self._buffer and self._ended is None:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                return []
        if not self._buffer and self._ended is not None:
            raise unavailable(self._ended) from self._ended
        return [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]

    async def close(self) -> None:
        """Give back what is not settled, and end the connection. A RabbitMQ that does not answer is
        not waited for longer than CLOSE_TIMEOUT_S: then the connection ends when it does answer, or
        with its loop."""
        leaving = self._leaving = asyncio.create_task(self._leave())
        await asyncio.wait((leaving,), timeout=CLOSE_TIMEOUT_S)
        if leaving.done():
            leaving.result()
            return
        if self._ended is None:
            self._note_end(BrokerUnavailable("the session is closed"))
        _log.info("RabbitMQ: the connection was not closed within %g s", CLOSE_TIMEOUT_S)

    async def _leave(self) -> None:
        try:
            await self.run(self.program.leave())
        except BrokerUnavailable:
            if self._closing is not None:
                await self._closing
            return  # it has ended already
        await self._end(BrokerUnavailable("the session is closed"))

    async def _end(self, error: BaseException) -> None:
        if self._ended is None:
            self._note_end(error)
            await self._disconnect()

    def _note_end(self, error: BaseException) -> None:
        self._ended = error
        self._buffer.clear()  # RabbitMQ delivers them again
        self._changed.set()

    async def _disconnect(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is None:
            return
        for part in (self._give_back, connection.close):
            try:
                await part()
            except BaseException as error:
                if not is_fault(error):
                    raise
                _log.info("RabbitMQ: the connection was not closed well: %s", reason_of(error))

    async def _give_back(self) -> None:
        """Closed over its messages, the connection would count as a failed delivery of each."""
        work = getattr(self, "_work", None)
        if work is not None and not work.is_closed and self.program.unsettled:
            await work.basic_nack(0, multiple=True, requeue=True)

    # --- the calls ------------------------------------------------------------------------------

    async def _perform(self, call: ChannelCall) -> Any:
        match call:
            case Ack(tag, up_to):
                await self._work.basic_ack(tag, multiple=up_to)
            case Publish([letter]):
                return [await self._publish_alone(letter)]
            case Publish(letters):
                return await asyncio.gather(*map(self._publish, letters))
            case Requeue(tag):
                await self._work.basic_nack(tag, multiple=tag == 0, requeue=True)
            case Subscribe(queue, prefetch):
                await self._work.basic_qos(prefetch_count=prefetch)
                begun = await self._work.basic_consume(queue, self._delivered)
                self._tag = begun.consumer_tag or ""
            case Unsubscribe():
                await self._work.basic_cancel(self._tag)
            case Declare(queue, arguments):
                await self._declare(queue, arguments)
            case CountMessages(queue):
                return await self._count(queue)
            case IsStream(queue):
                return await self._is_stream(queue)
            case Take(queue):
                channel = await self._letters.get_underlay_channel()
                got = await channel.basic_get(queue)
                is_empty = isinstance(got.delivery, aiormq.spec.Basic.GetEmpty)
                return None if is_empty else self._message(got)
            case AckTaken(tag):
                channel = await self._letters.get_underlay_channel()
                await channel.basic_ack(tag)
        return None

    async def _publish_alone(self, letter: Letter) -> str | None:
        """RabbitMQ closes the channel over a message that is too large or has no exchange. With
        others on the same channel nobody would know which of them it was, and those that are
        under way then may end the whole connection."""
        try:
            return await self._publish(letter)
        except ChannelClosed as error:
            self._letters = await self._connection.channel(on_return_raises=True)
            return reason_of(error)

    async def _publish(self, letter: Letter) -> str | None:
        message = aio_pika.Message(letter.body, **letter.properties)
        exchange = await self._letters.get_exchange(letter.exchange, ensure=False)
        try:
            await exchange.publish(message, letter.queue, timeout=PUBLISH_TIMEOUT_S)
        except PublishError:
            return NO_QUEUE
        except DeliveryError:
            return NOT_TAKEN
        return None

    async def _declare(self, queue: str, arguments: dict[str, Any], passive: bool = False) -> Any:
        """RabbitMQ closes the channel of a call that it refuses, so such a call has its own."""
        channel = await self._connection.channel()
        try:
            return await channel.declare_queue(
                queue, durable=True, arguments=arguments, passive=passive
            )
        except _REFUSED as error:
            raise RabbitRefused(f"RabbitMQ: {reason_of(error)}") from error
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _count(self, queue: str) -> int | None:
        try:
            found = await self._declare(queue, {}, passive=True)
        except RabbitRefused as error:
            if isinstance(error.__cause__, ChannelNotFoundEntity):
                return None
            raise
        count: int = found.declaration_result.message_count
        return count

    async def _is_stream(self, queue: str) -> bool:
        try:
            await self._declare(queue, STREAM)
        except RabbitRefused:
            return False
        return True

    # --- what comes by itself -------------------------------------------------------------------

    async def _delivered(self, delivered: aiormq.abc.DeliveredMessage) -> None:
        if self._ended is None:
            message = self._message(delivered)
            self.program.unsettled[message.raw.tag] = None
            self._buffer.append(message)
            self._changed.set()

    def _message(self, delivered: aiormq.abc.DeliveredMessage) -> Message:
        properties = delivered.header.properties
        delivery = Delivery(
            self,
            delivered.delivery_tag or 0,
            {name: getattr(properties, _PAMQP.get(name, name)) for name in (*COPIED, "headers")},
            delivered.exchange or "",
            delivered.routing_key or "",
            bool(delivered.redelivered),
            delivered,
        )
        return message_of(delivery, bytes(delivered.body), self._settings.queue)

    async def _lost(self, sender: object, error: BaseException | None = None) -> None:
        """A callback of aio-pika, which waits for it before a connection counts as closed. So the
        connection is closed elsewhere: here that would wait for itself."""
        if self._ended is None:
            self._note_end(error or BrokerUnavailable("the connection was closed"))
            self._closing = asyncio.create_task(self._disconnect())

    async def _cancelled(self, frame: object) -> None:
        self.program.is_subscribed = False
        await self._lost(
            frame,
            BrokerUnavailable(
                "RabbitMQ ended the subscription: a message was held for longer than the consumer "
                "timeout, or the queue was removed"
            ),
        )
