"""Queue consumers: the message is the request, redelivery is the retry.

    from oncekey.queues import Consumer, Message         # threads, over Once
    from oncekey.queues import AsyncConsumer             # tasks, over AsyncOnce
    from oncekey.queues import consume                   # one message of any other queue

A consumer claims the key of each message, runs its handler at most once, and removes the message
only when the outcome is durable. What follows from what is the table in disposition.py.

    rules      queue_message, message_key, disposition, redrive, delivery_flow: pure
    loop       consumer_settings, work_in_hand; blocking/ and aio/ with threads and with tasks
    brokers    broker is the port; a package for each broker implements it
    rows       inbox and outbox: messages in the transaction of the rows they are about
    tasks      task_guard; celery, dramatiq and taskiq, which receive by themselves; faststream
    any other  `consume`, for one message at a time

The names that all brokers share are here. Those of one broker are in its module, such as
oncekey.queues.sqs, which alone needs the broker's client.
"""

from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import AsyncBroker, Broker, BrokerUnavailable
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.delivery_flow import TooManyTries
from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.memory_broker import AsyncMemoryBroker, MemoryBroker
from oncekey.queues.queue_message import Message
from oncekey.queues.single_message import consume

__all__ = [
    "AsyncBroker",
    "AsyncConsumer",
    "AsyncMemoryBroker",
    "Broker",
    "BrokerFacts",
    "BrokerUnavailable",
    "Consumer",
    "DeadLetter",
    "Disposition",
    "Kind",
    "MemoryBroker",
    "Message",
    "TooManyTries",
    "consume",
]
