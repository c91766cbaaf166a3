"""Amazon SQS: consumers and senders with boto3 and aiobotocore, and a handler for AWS Lambda."""

from __future__ import annotations

from oncekey.queues.sqs.lambda_handler import BatchNotDone, LambdaHandler
from oncekey.queues.sqs.sqs_calls import SqsRefused
from oncekey.queues.sqs.sqs_consumer import AsyncSQSConsumer, SQSConsumer
from oncekey.queues.sqs.sqs_message import message_of
from oncekey.queues.sqs.sqs_sender import AsyncSQSSender, SQSSender

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
