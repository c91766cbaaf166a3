"""Amazon SQS: consumers and senders with boto3 and aiobotocore, and a handler for AWS Lambda."""

from __future__ import annotations

from oncekey.queues.sqs.broker_calls import SqsRefused
from oncekey.queues.sqs.consumers import AsyncSQSConsumer, SQSConsumer
from oncekey.queues.sqs.lambda_handler import BatchNotDone, LambdaHandler
from oncekey.queues.sqs.message import message_of
from oncekey.queues.sqs.sender import AsyncSQSSender, SQSSender

__all__ = [
    "AsyncSQSConsumer",
    "AsyncSQSSender",
    "BatchNotDone",
    "LambdaHandler",
    "SQSConsumer",
    "SQSSender",
    "SqsRefused",
    "message_of",
]
