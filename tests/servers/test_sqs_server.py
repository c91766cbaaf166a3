"""Both emulators of SQS do what the tests of queues rely on; their modules say what they do not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.servers import processes
from tests.support.servers.elasticmq_server import elasticmq
from tests.support.servers.sqs_server import SqsServer, sqs

HIDDEN_SECONDS = 30


@pytest.fixture(params=[sqs, elasticmq], ids=["moto", "elasticmq"])
def server(request: pytest.FixtureRequest) -> SqsServer:
    found: SqsServer = request.param()
    return found


def receive(server: SqsServer, url: str, **options: Any) -> list[dict[str, Any]]:
    asked = {
        "MaxNumberOfMessages": 10,
        "VisibilityTimeout": HIDDEN_SECONDS,
        "MessageSystemAttributeNames": ["All"],
        **options,
    }
    answer = server.client().receive_message(QueueUrl=url, **asked)
    return list(answer.get("Messages", ()))


def test_a_received_message_is_hidden_and_counts_its_receives(server: SqsServer) -> None:
    pair = server.pair()
    pair.send("order")
    [first] = receive(server, pair.source)
    assert receive(server, pair.source) == []
    server.client().change_message_visibility(
        QueueUrl=pair.source, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    [second] = receive(server, pair.source)
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_the_redrive_policy_moves_a_message_that_was_received_too_often(server: SqsServer) -> None:
    pair = server.pair(max_receives=1)
    pair.send("order")
    assert len(receive(server, pair.source, VisibilityTimeout=0)) == 1
    assert receive(server, pair.source) == []
    assert [letter["Body"] for letter in pair.dead_letters()] == ["order"]
    assert pair.redrive() == 1
    assert server.is_empty(pair.dead)
    assert not server.is_empty(pair.source)


def test_a_hidden_message_holds_back_its_group_and_no_other(server: SqsServer) -> None:
    pair = server.pair(fifo=True, ContentBasedDeduplication="true")
    pair.send("a1", "a2", MessageGroupId="a")
    pair.send("b1", MessageGroupId="b")
    assert [one["Body"] for one in receive(server, pair.source, MaxNumberOfMessages=1)] == ["a1"]
    assert [one["Body"] for one in receive(server, pair.source)] == ["b1"]


def test_the_first_of_a_group_that_is_visible_again_comes_before_the_later_ones() -> None:
    """On ElasticMQ; moto gives out a later one."""
    server = elasticmq()
    pair = server.pair(fifo=True, ContentBasedDeduplication="true")
    pair.send("a1", "a2", "a3", MessageGroupId="a")
    taken = receive(server, pair.source)
    for one in reversed(taken):
        server.client().change_message_visibility(
            QueueUrl=pair.source, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
        )
    assert [one["Body"] for one in receive(server, pair.source)] == ["a1", "a2", "a3"]


def test_a_batch_call_reports_the_entry_that_failed(server: SqsServer) -> None:
    pair = server.pair()
    pair.send("order")
    [message] = receive(server, pair.source)
    entries = [
        {"Id": "good", "ReceiptHandle": message["ReceiptHandle"]},
        {"Id": "bad", "ReceiptHandle": "never given out"},
    ]
    answer = server.client().delete_message_batch(QueueUrl=pair.source, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [entry["Code"] for entry in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    assert pair.are_empty()


def test_the_emulator_ends_with_its_block() -> None:
    with SqsServer() as server:
        pid, folder = server.pid, server.directory
    assert not processes.is_running(pid)
    assert not folder.exists()
