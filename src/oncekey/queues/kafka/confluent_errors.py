"""What errors of confluent-kafka mean for a consumer: it ends, it joins anew, or it goes on.

This module translates; it must not call any client.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault, reason_of

# A consumer that gets one of these would get it for ever.
FINAL: Final = frozenset(
    (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._FATAL,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
)


def check_error(partition: TopicPartition) -> None:
    if partition.error is not None:
        raise KafkaException(partition.error)


def refused(error: object) -> ConfigurationError:
    return ConfigurationError(f"Kafka refuses this consumer: {error}")


def failure_of(error: BaseException) -> BaseException:
    """What the end of the thread means for the consumer: a refusal ends it, and after anything else
    its broker joins the group anew."""
    if isinstance(error, OncekeyError) or not is_fault(error):
        return error
    return refused(error) if code_of(error) in FINAL else unavailable(error)


def not_made(error: Exception) -> OncekeyError:
    """What it means that a client could not be made: nothing was asked of Kafka yet."""
    is_wrong = isinstance(error, (TypeError, ValueError))
    if is_wrong or code_of(error) == KafkaError._INVALID_ARG:
        return ConfigurationError(f"config= is not what confluent-kafka takes: {error}")
    return unavailable(error)


def code_of(error: object) -> int | None:
    """The code of an error of Kafka or of its client; None for any other one."""
    found = _found(error)
    return found.code() if isinstance(found, KafkaError) else None


def unavailable(error: BaseException | KafkaError) -> BrokerUnavailable:
    """The error with its text alone: in full it is KafkaError{code=...,val=...,str="..."}."""
    found = _found(error)
    text = found.str() if isinstance(found, KafkaError) else reason_of(found)
    return BrokerUnavailable(f"Kafka does not answer as it should: {text}")


def _found(error: Any) -> Any:
    return error.args[0] if isinstance(error, KafkaException) and _has_code(error) else error


def _has_code(error: KafkaException) -> bool:
    return bool(error.args) and isinstance(error.args[0], KafkaError)
