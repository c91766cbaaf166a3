"""`LambdaHandler`: the messages of SQS that AWS Lambda gives to a function, each handled once.

Lambda receives, and deletes what the function does not report as failed. So the dispositions of the
table become:

    REMOVE                    not reported; Lambda deletes it
    DEAD_LETTER, PARK         sent to the dead-letter queue first, then not reported
    HIDE, RETRY               reported, and hidden for the seconds asked for
    GIVE_BACK, followers      reported: the store is down, the time is over, or an earlier message
                              of the same FIFO group is not done

Lambda reads the report only if the event source mapping has `ReportBatchItemFailures`. Without it,
a report of failures counts as success and every message of the batch is deleted. The event does not
say, so the default is safe in both cases: with `reports_failures=False` a batch that is not done
raises, Lambda delivers all of it again, and what was finished is replayed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.broker_identity import bound_scope
from oncekey.queues.consumer_settings import (
    CONCURRENCY_DEFAULT,
    MAX_TRIES_DEFAULT,
    ConsumerSettings,
    RequestChoice,
    check_engine,
    plan_of,
)
from oncekey.queues.disposition import FOLLOWS, Disposition, Kind
from oncekey.queues.handler_call import HandlerCall
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.sqs.broker_calls import CallFailed, SqsRefused
from oncekey.queues.sqs.consumers import Boto3Broker
from oncekey.queues.sqs.message import message_of_record
from oncekey.queues.sqs.program import QueueProgram
from oncekey.queues.sqs.settings import address_of
from oncekey.queues.work_in_hand import Entry

STOP_BEFORE_DEFAULT: Final = "2s"
NO_TIME: Final = Disposition(Kind.GIVE_BACK, reason="the time of the function is over")
_SOURCE: Final = "aws:sqs"
_REPORTS: Final = "ReportBatchItemFailures"
_log = logging.getLogger("oncekey")


class BatchNotDone(OncekeyError):
    """Messages of a Lambda batch are not done, and the event source does not read reports of single
    failures. Lambda delivers the whole batch again; what was finished is replayed."""


class LambdaHandler:
    """An entry point for AWS Lambda with an SQS event source: `handler = LambdaHandler(...)`.

    queue options       `client`, `dead_letter_queue` and `park_queue` as for SQSConsumer
    reports_failures    True only if the event source mapping has ReportBatchItemFailures; see the
                        top of this module, and `check_event_source`
    stop_before         no handler is started in this last part of the function's time: one that
                        Lambda ends in the middle would leave its key unknown
    concurrency         how many handlers run at the same time; messages of one FIFO group run one
                        after the other

    The other options are those of a consumer, and the fields of Policy. One object serves every
    queue that is an event source of the function.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        *,
        name: str,
        key: KeyChoice,
        client: Any = None,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        reports_failures: bool = False,
        stop_before: Duration = STOP_BEFORE_DEFAULT,
        request: RequestChoice = "body",
        concurrency: int = CONCURRENCY_DEFAULT,
        max_tries: int = MAX_TRIES_DEFAULT,
        **options: Any,
    ) -> None:
        check_engine(once, Once)
        own = ("backoff", "backoff_max", "broker_name")
        given = {name: options.pop(name) for name in own if name in options}
        self.settings = ConsumerSettings(
            name=name,
            key=key,
            request=request,
            concurrency=concurrency,
            max_tries=max_tries,
            options=options,
            **given,
        )
        self._once = once
        self._call = HandlerCall(handler, is_async=False, in_transaction=False)
        self._client = client
        self._letter_queues = (dead_letter_queue, park_queue)
        self._reports_failures = reports_failures
        self._stop_before_s = microseconds(stop_before, name="stop_before") / 1_000_000
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """Handle the messages of an event, and answer which of them are not done."""
        deadline = self._deadline(context)
        settled: list[Settled] = []
        failed: list[Message] = []
        for arn, records in _by_queue(event).items():
            source = self._source(arn)
            messages = [message_of_record(record, source.queue) for record in records]
            done = source.handle(messages, deadline)
            failed += source.settle(done)
            settled += done
        if failed and not self._reports_failures:
            raise BatchNotDone(_described(settled, failed))
        return {"batchItemFailures": [{"itemIdentifier": one.delivery_id} for one in failed]}

    def check_event_source(self, lambda_client: Any, function_name: str) -> None:
        """Ask AWS whether the event sources of a function read reports of single failures; raises
        ConfigurationError if they do not and `reports_failures` says that they do. For deployments:
        it needs `lambda:ListEventSourceMappings`, which a function seldom has itself."""
        pages = lambda_client.get_paginator("list_event_source_mappings")
        for page in pages.paginate(FunctionName=function_name):
            for mapping in page["EventSourceMappings"]:
                arn = str(mapping.get("EventSourceArn", ""))
                reads = _REPORTS in mapping.get("FunctionResponseTypes", ())
                if ":sqs:" not in arn or reads is self._reports_failures:
                    continue
                if reads:
                    _log.warning("%s reads reports: give reports_failures=True", arn)
                    continue
                raise ConfigurationError(
                    f"the event source {arn} of {function_name} does not have {_REPORTS}: with "
                    "reports_failures=True, messages that failed would be deleted. Add it to "
                    "FunctionResponseTypes of the mapping, or give reports_failures=False"
                )

    def _deadline(self, context: Any) -> float | None:
        """Return when no more handlers may begin; None if the function's time is not known."""
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        if remaining is None:
            return None
        return time.monotonic() + float(remaining()) / 1_000 - self._stop_before_s

    def _source(self, arn: str) -> _Source:
        with self._lock:
            found = self._sources.get(arn)
            if found is None:
                most = self.settings.max_tries
                program = QueueProgram(arn, *self._letter_queues, max_tries=most)
                broker = Boto3Broker(self._client, program)
                Port(self._once).ready()
                facts = broker.facts()
                scope = bound_scope(self._once, self.settings, facts)
                plan = plan_of(self.settings, facts, self._once, scope)
                handler = MessageHandler(self._once, self._call, plan)
                found = self._sources[arn] = _Source(arn, broker, handler, self.settings)
            return found


class _Source:
    """One queue that is an event source of the function."""

    def __init__(
        self, arn: str, broker: Boto3Broker, handler: MessageHandler, settings: ConsumerSettings
    ) -> None:
        self.queue = address_of(arn)[0]
        self._broker = broker
        self._handler = handler
        self._concurrency = settings.concurrency

    def handle(self, messages: Sequence[Message], deadline: float | None) -> list[Settled]:
        """Handle messages in threads, those of one group in their order."""
        groups: dict[object, list[Message]] = {}
        for message in messages:
            groups.setdefault(message.order_group or message, []).append(message)
        with ThreadPoolExecutor(min(self._concurrency, len(groups)), "oncekey-lambda") as pool:
            done = pool.map(lambda group: self._handle_group(group, deadline), groups.values())
            settled = [one for group in done for one in group]
        return [self._again(pair, deadline) for pair in settled]

    def _again(self, pair: Settled, deadline: float | None) -> Settled:
        """Handle a message once more that was in flight: another message of this batch may have
        had its key, and is done by now. One of a FIFO group has met its own before."""
        message, disposition = pair
        if disposition.kind is not Kind.HIDE or message.order_group:
            return pair
        (again,) = self._handle_group([message], deadline)
        return pair if again[1] is NO_TIME else again

    def _handle_group(self, group: Iterable[Message], deadline: float | None) -> list[Settled]:
        settled: list[Settled] = []
        for message in group:
            if settled and not settled[-1][1].lets_pass:
                settled.append((message, FOLLOWS))
            elif deadline is not None and time.monotonic() >= deadline:
                settled.append((message, NO_TIME))
            else:
                entry = Entry(message, time.monotonic())
                settled.append((message, self._handler.handle(entry)))
        return settled

    def settle(self, settled: Sequence[Settled]) -> list[Message]:
        """Do what Lambda does not do by itself; return the messages that are to come again."""
        failures: list[CallFailed] = []
        taken = self._broker.run(self._broker.program.send_letters(settled, failures))
        hidden = [one for one in settled if one[1].kind in (Kind.HIDE, Kind.RETRY)]
        if hidden:
            try:
                self._broker.settle(hidden)
            except (BrokerUnavailable, SqsRefused) as error:
                _log.warning("%s; the queue's own visibility timeout applies", error)
        return [
            message
            for message, what in settled
            if what.kind is not Kind.REMOVE and message not in taken
        ]


def _by_queue(event: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the records of an event by the ARN of their queue."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        raise ConfigurationError("this is no event of an SQS event source: it has no Records")
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("eventSource") != _SOURCE:
            raise ConfigurationError(
                f"a record comes from {record.get('eventSource')!r} and not from {_SOURCE!r}"
            )
        found.setdefault(str(record["eventSourceARN"]), []).append(record)
    return found


def _described(settled: Sequence[Settled], failed: Sequence[Message]) -> str:
    reasons = {what.reason for message, what in settled if message in failed and what.reason}
    return (
        f"{len(failed)} of {len(settled)} messages are not done ({'; '.join(sorted(reasons))}). "
        "The whole batch comes again. With ReportBatchItemFailures in the event source mapping and "
        "reports_failures=True, only these would"
    )
