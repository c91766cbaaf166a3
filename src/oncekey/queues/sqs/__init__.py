"""Amazon SQS: consumers with boto3 and aiobotocore, and a handler for AWS Lambda."""

from __future__ import annotations

from oncekey.queues.sqs.lambda_handler import BatchNotDone, LambdaHandler
from oncekey.queues.sqs.sqs_calls import SqsRefused
from oncekey.queues.sqs.sqs_consumer import AsyncSQSConsumer, SQSConsumer

__all__ = ["AsyncSQSConsumer", "BatchNotDone", "LambdaHandler", "SQSConsumer", "SqsRefused"]
