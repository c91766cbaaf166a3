"""The settings of a queue as SQS reports them, and whether those of a consumer fit them.

Owns the reading of `GetQueueAttributes` and the arithmetic of receives. Pure: the calls are made by
program.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker_identity import identity_of

# SQS shows a hidden message again after so long, counted from its receive, whatever happens.
VISIBILITY_MAX_S: Final = 12 * 3600
WAIT_MAX_S: Final = 20  # of one long poll
# A try costs one receive; if its consumer dies, the lease may outlast the visibility by one more.
RECEIVES_PER_TRY: Final = 2
# Not every server with SQS's protocol reports all of it. A message is then kept as long as SQS can,
# so that no key is forgotten before it, and is as large as SQS allowed from its beginning.
UNTOLD_RETENTION_S: Final = 14 * 86_400
UNTOLD_BYTES: Final = 262_144
_AWS_HOSTS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """The attributes of a queue that a consumer needs.

    created        differs from that of a later queue of the same name
    dead_letters   the ARN of its dead-letter queue, "" if its redrive policy names none
    max_receives   after so many receives SQS itself moves a message there, 0 if it never does
    """

    url: str
    arn: str
    created: str
    is_fifo: bool
    retention_s: int
    max_bytes: int
    dead_letters: str = ""
    max_receives: int = 0

    @property
    def name(self) -> str:
        return self.arn.rpartition(":")[2]

    @property
    def broker(self) -> str:
        """Account and region; of an emulator also where it is, since all have the same account."""
        _, partition, _, region, account, _ = self.arn.split(":")
        host = urlsplit(self.url).netloc
        endpoint = None if host.endswith(_AWS_HOSTS) else host
        return identity_of(
            "sqs", partition=partition, region=region, account=account, endpoint=endpoint
        )

    @property
    def identity(self) -> str:
        return f"{self.arn}@{self.created}"


def parse_attributes(url: str, given: dict[str, Any]) -> QueueAttributes:
    """Read the answer of GetQueueAttributes."""
    policy = json.loads(given.get("RedrivePolicy") or "{}")
    return QueueAttributes(
        url=url,
        arn=str(given["QueueArn"]),
        created=str(given["CreatedTimestamp"]).partition(".")[0],
        is_fifo=str(given.get("FifoQueue", "false")).lower() == "true",
        retention_s=int(given.get("MessageRetentionPeriod", UNTOLD_RETENTION_S)),
        max_bytes=int(given.get("MaximumMessageSize", UNTOLD_BYTES)),
        dead_letters=str(policy.get("deadLetterTargetArn", "")),
        max_receives=int(policy.get("maxReceiveCount", 0)),
    )


def address_of(arn: str) -> tuple[str, str]:
    """Return the name and the account of a queue, which GetQueueUrl asks for."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[2] != "sqs":
        raise ConfigurationError(f"{arn!r} is not the ARN of an SQS queue")
    return parts[5], parts[4]


def check_dead_letters(source: QueueAttributes, dead: QueueAttributes) -> None:
    """Refuse a dead-letter queue that cannot take this queue's messages."""
    if dead.arn == source.arn:
        raise ConfigurationError(
            f"{source.name} cannot be its own dead-letter queue: a dead letter would be delivered "
            "again at once, for ever"
        )
    if dead.is_fifo != source.is_fifo:
        raise ConfigurationError(
            f"the dead-letter queue {dead.name} and the queue {source.name} must both be FIFO "
            "queues or both be standard ones, or messages cannot be moved back"
        )
    if dead.max_bytes < source.max_bytes:
        raise ConfigurationError(
            f"the dead-letter queue {dead.name} takes messages of {dead.max_bytes} bytes and "
            f"{source.name} of {source.max_bytes}: a large message that failed could not leave it. "
            "Raise MaximumMessageSize of the dead-letter queue"
        )


def no_dead_letters(source: QueueAttributes) -> ConfigurationError:
    return ConfigurationError(
        f"the queue {source.name} has no dead-letter queue, so a message that failed for good "
        "could neither stay nor be removed. Give the queue a RedrivePolicy, or this consumer "
        "dead_letter_queue= with the URL of one"
    )


def receives_warning(source: QueueAttributes, max_tries: int) -> str:
    """Return a warning if SQS may move a healthy message away before its tries are over, or "".

    That it does so even where nothing but the handler goes wrong is refused by the consumer's
    settings.
    """
    wanted = RECEIVES_PER_TRY * max_tries
    if not source.max_receives or source.max_receives >= wanted:
        return ""
    return (
        f"maxReceiveCount={source.max_receives} of {source.name} leaves little room for "
        f"max_tries={max_tries}: every receive counts, also one that finds the lease of a killed "
        "consumer, one by a consumer that stops, and in a FIFO queue one behind a message that is "
        "tried again. SQS may then move a healthy message to the dead-letter queue, without an "
        f"error. Set it to {wanted} or more"
    )
