"""Amazon SQS as moto's server emulates it, in a process of its own on the loopback.

moto is an emulator, and what it proves is said here. It has, as SQS does: visibility timeouts in
whole seconds, receive counts, the redrive policy (a message that was received `maxReceiveCount`
times is moved at the next receive, with its attributes), groups of FIFO queues that wait for their
hidden messages, deduplication ids, batch calls with partial failures, long polling.
It differs, and no test may rely on it: it loses everything when it ends; it sees a message that
became visible again up to a second late; it accepts a receipt handle that a later receive has
replaced; it counts the twelve hours of visibility from the sending and not from the receive; it has
no `StartMessageMoveTask`, so that tests move messages back by hand; two receives at the same moment
may return the same message, which a standard queue may do as well.

This module owns the server and clients for it. It must not know what oncekey does with queues.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import processes
from tests.support.servers.processes import ServerMissing
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import LoopbackServer, started

REGION = "eu-central-1"
# An emulator accepts any credentials, and a client refuses to start without some.
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


class SqsServer(LoopbackServer):
    """One emulated SQS: `with SqsServer() as server:`, then `server.client()`."""

    def __init__(self, base: Path | None = None) -> None:
        for package in ("moto", "boto3", "flask"):
            if importlib.util.find_spec(package) is None:
                raise ServerMissing("moto's SQS server", "pip install 'moto[server]' boto3")
        super().__init__("sqs", base)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def options(self) -> dict[str, str]:
        """Return what a client of boto3 or aiobotocore is given to reach this server."""
        return {"endpoint_url": self.url, "region_name": REGION, **CREDENTIALS}

    def environment_of_clients(self) -> dict[str, str]:
        """Return the variables with which a client that is given nothing reaches this server."""
        credentials = {name.upper(): value for name, value in CREDENTIALS.items()}
        return {"AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": REGION, **credentials}

    def client(self, **options: Any) -> Any:
        """Return a new client of boto3."""
        import boto3

        return boto3.client("sqs", **{**self.options(), **options})

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, *, fifo: bool = False, **attributes: str) -> str:
        """Create a queue with a new name and return its URL."""
        name = processes.fresh_name("orders") + (".fifo" if fifo else "")
        given = {**attributes, **({"FifoQueue": "true"} if fifo else {})}
        return str(self._client.create_queue(QueueName=name, Attributes=given)["QueueUrl"])

    def pair(self, *, fifo: bool = False, max_receives: int = 100, **attributes: str) -> QueuePair:
        """Create a queue and its dead-letter queue."""
        dead = self.queue(fifo=fifo)
        arn = self.attributes(dead)["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_receives})
        source = self.queue(fifo=fifo, RedrivePolicy=policy, **attributes)
        return QueuePair(self, source, dead)

    def attributes(self, url: str) -> dict[str, str]:
        answer = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return dict(answer["Attributes"])

    def is_empty(self, url: str) -> bool:
        """True if the queue holds no message, neither visible nor hidden nor delayed. Asked twice:
        a message that becomes visible in the middle of a count is in none of its parts."""
        kinds = ("", "NotVisible", "Delayed")
        counts = [self.attributes(url) for _ in range(2)]
        return not any(
            int(found[f"ApproximateNumberOfMessages{kind}"]) for found in counts for kind in kinds
        )

    @functools.cached_property
    def _client(self) -> Any:
        return self.client()


@dataclass(frozen=True, slots=True)
class QueuePair:
    """A queue and its dead-letter queue, by their URLs."""

    server: SqsServer
    source: str
    dead: str

    def send(self, *bodies: str, **fields: Any) -> list[str]:
        """Send messages one by one, and return their MessageIds."""
        sent = [
            self.server._client.send_message(QueueUrl=self.source, MessageBody=body, **fields)
            for body in bodies
        ]
        return [str(answer["MessageId"]) for answer in sent]

    def dead_letters(self) -> list[dict[str, Any]]:
        """Receive what the dead-letter queue has, and leave it there, visible."""
        return self._receive(self.dead, visible_after=0)

    def redrive(self) -> int:
        """Move the dead letters back by hand, as `StartMessageMoveTask` does; return how many.

        Body and attributes stay, and the MessageId is a new one.
        """
        client = self.server._client
        moved = self._receive(self.dead, visible_after=30)
        for message in moved:
            fields: dict[str, Any] = {"MessageAttributes": message.get("MessageAttributes", {})}
            if self.source.endswith(".fifo"):
                attributes = message["Attributes"]
                fields["MessageGroupId"] = attributes["MessageGroupId"]
                fields["MessageDeduplicationId"] = message["MessageId"]
            client.send_message(QueueUrl=self.source, MessageBody=message["Body"], **fields)
            client.delete_message(QueueUrl=self.dead, ReceiptHandle=message["ReceiptHandle"])
        return len(moved)

    def are_empty(self) -> bool:
        return self.server.is_empty(self.source) and self.server.is_empty(self.dead)

    def _receive(self, url: str, *, visible_after: int) -> list[dict[str, Any]]:
        answer = self.server._client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=0,
            VisibilityTimeout=visible_after,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return list(answer.get("Messages", ()))


def sqs() -> SqsServer:
    """The emulated SQS that a run shares; each test makes its own queues."""
    return require(_sqs)


@functools.cache
def _sqs() -> SqsServer:
    return started(SqsServer())
