"""Queue consumers: the message is the request, redelivery is the retry.

A consumer claims the key of each message, runs its handler at most once, and removes the message
only when the outcome is durable. What follows from what is the table in disposition.py.

    rules      queue_message, message_key, disposition, redrive, delivery_flow: pure
    loop       consumer_settings, work_in_hand; blocking/ and aio/ with threads and with tasks
    brokers    broker is the port; a package for each broker implements it
    tasks      task_guard; celery, dramatiq and taskiq, which receive by themselves; faststream
    any other  `consume`, for one message at a time
"""

from oncekey.queues.single_message import consume

__all__ = ["consume"]
