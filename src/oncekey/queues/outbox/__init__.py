"""The transactional outbox: messages that commit together with the rows they tell about.

    outbox = Outbox(once)                          # on PostgreSQL or SQLite
    outbox.create_table()                          # once, at start-up
    with pool.connection() as connection:
        insert_order(connection, order)
        outbox.add(connection, "orders", {"order": order.id}, order_group=order.id)

    OutboxPublisher(once, publish=send).run()      # somewhere else: sends what was committed

`AsyncOutbox` and `AsyncOutboxPublisher` are the same for asyncio. A message is sent at least once,
always under the same id, which it carries in the header `oncekey-key`.
"""

from oncekey.queues.outbox.async_publisher import AsyncOutboxPublisher
from oncekey.queues.outbox.outbox_table import AsyncOutbox, Outbox, OutboxStats, ParkedMessage
from oncekey.queues.outbox.outgoing_message import KEY_HEADER, OutgoingMessage
from oncekey.queues.outbox.publisher import OutboxPublisher
from oncekey.queues.outbox.publisher_flow import PublisherSettings
from oncekey.queues.outbox.senders import AsyncSender, Sender, memory_sender

__all__ = [
    "KEY_HEADER",
    "AsyncOutbox",
    "AsyncOutboxPublisher",
    "AsyncSender",
    "Outbox",
    "OutboxPublisher",
    "OutboxStats",
    "OutgoingMessage",
    "ParkedMessage",
    "PublisherSettings",
    "Sender",
    "memory_sender",
]
