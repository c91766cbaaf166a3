"""What becomes of messages on SQS, sync and async, by how their attempts end.

Against two emulators, moto and ElasticMQ; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.queues.sqs_rounds import ROUNDS, Handler, Rounds, SyncRounds
from tests.support.servers.elasticmq_server import elasticmq
from tests.support.servers.sqs_server import QueuePair, SqsServer, sqs

from oncekey import Terminal
from oncekey.queues.disposition import STOPPED, Kind
from oncekey.queues.queue_message import Message

ORDER = '{"order": 17}'
Start = Callable[..., Rounds]


@pytest.fixture(params=[sqs, elasticmq], ids=["moto", "elasticmq"])
def server(request: pytest.FixtureRequest) -> SqsServer:
    found: SqsServer = request.param()
    return found


@pytest.fixture
def pair(server: SqsServer) -> QueuePair:
    return server.pair()


@pytest.fixture(params=ROUNDS)
def start(request: pytest.FixtureRequest, pair: QueuePair, tmp_path: Path) -> Iterator[Start]:
    """Starts a consumer on the pair and on one store."""
    with ExitStack() as stack:

        def make(handler: Handler, **options: Any) -> Rounds:
            store = f"sqlite:///{tmp_path / 'keys.db'}"
            return stack.enter_context(
                closing(ROUNDS[request.param](pair, store, handler, **options))
            )

        yield make


class Shipping:
    """A handler that counts, and raises the errors it is given, one each time."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.ran = 0

    def __call__(self, message: Message) -> None:
        self.ran += 1
        if self.errors:
            raise self.errors.pop(0)


def kinds(rounds: Rounds, wait: float = 0) -> list[Kind]:
    return [disposition.kind for disposition in rounds.round(wait)]


def show(pair: QueuePair, message: Message) -> None:
    """Make a hidden message visible, as the end of its delay does."""
    pair.server.client().change_message_visibility(
        QueueUrl=pair.source, ReceiptHandle=message.raw["ReceiptHandle"], VisibilityTimeout=0
    )


def marks(letter: dict[str, Any]) -> dict[str, str]:
    return {
        name: attribute["StringValue"] for name, attribute in letter["MessageAttributes"].items()
    }


def test_a_duplicate_with_another_message_id_is_removed_and_not_run(
    start: Start, pair: QueuePair
) -> None:
    shipping = Shipping()
    rounds = start(shipping)
    first, second = pair.send(ORDER, ORDER)
    assert first != second
    assert kinds(rounds) == [Kind.REMOVE, Kind.REMOVE]
    assert shipping.ran == 1
    assert pair.are_empty()


def test_a_message_in_flight_elsewhere_stays_and_comes_again_after_that_lease(
    start: Start, pair: QueuePair, tmp_path: Path
) -> None:
    """It is neither removed nor run, and costs one more receive only."""
    running, finish = threading.Event(), threading.Event()

    def slow(message: Message) -> None:
        running.set()
        assert finish.wait(90)

    shipping = Shipping()
    other = start(shipping)
    owner = SyncRounds(pair, f"sqlite:///{tmp_path / 'keys.db'}", slow, lease="1m")
    with closing(owner):
        pair.send(ORDER)
        (held,) = owner.receive()
        thread = threading.Thread(target=owner.consumer.handle, args=(held,))
        thread.start()
        assert running.wait(90)
        pair.send(ORDER)
        (message,) = other.receive()
        duplicate = other.handle(message)
        assert duplicate.kind is Kind.HIDE
        assert 10 < duplicate.seconds <= 60.5  # what is left of the lease
        other.settle([(message, duplicate)])
        assert other.receive() == []  # hidden, not removed
        assert not pair.server.is_empty(pair.source)
        finish.set()
        thread.join()
    show(pair, message)
    (again,) = other.receive(wait=10)
    assert again.receive_count == 2
    other.settle([(again, duplicate)])
    show(pair, again)
    assert kinds(other, wait=10) == [Kind.REMOVE]
    assert shipping.ran == 0


def test_a_handler_that_raises_is_retried_and_then_a_dead_letter_with_its_error(
    start: Start, pair: QueuePair
) -> None:
    shipping = Shipping(ConnectionError("no carrier"), ConnectionError("no\tcarrier"))
    rounds = start(shipping, retry_safe=True, max_tries=2, backoff="1m")
    pair.send(ORDER, MessageAttributes={"Trace": {"DataType": "String", "StringValue": "t-1"}})
    (message,) = rounds.receive()
    first = rounds.handle(message)
    assert (first.kind, first.seconds) == (Kind.RETRY, 60.0)
    rounds.settle([(message, first)])
    assert rounds.receive() == []
    show(pair, message)
    assert kinds(rounds, wait=10) == [Kind.DEAD_LETTER]
    assert shipping.ran == 2
    assert pair.server.is_empty(pair.source)
    (letter,) = pair.dead_letters()
    found = marks(letter)
    assert letter["Body"] == ORDER
    assert "failed 2 times" in found["oncekey-error"]
    assert "ConnectionError: no carrier" in found["oncekey-error"]
    assert (found["Trace"], found["oncekey-tries"]) == ("t-1", "2")
    assert found["oncekey-source"] == pair.server.attributes(pair.source)["QueueArn"]


def test_a_redriven_dead_letter_runs_once_more_and_only_once(start: Start, pair: QueuePair) -> None:
    """Moved by hand, as StartMessageMoveTask does it, which the emulator lacks."""
    shipping = Shipping(Terminal("no such address"), Terminal("still none"))
    rounds = start(shipping)
    pair.send(ORDER)
    assert kinds(rounds) == [Kind.DEAD_LETTER]
    pair.send(ORDER)  # an ordinary duplicate opens nothing
    assert kinds(rounds) == [Kind.DEAD_LETTER]
    assert shipping.ran == 1
    old = pair.dead_letters()[0]
    assert pair.redrive() == 2
    assert kinds(rounds) == [Kind.DEAD_LETTER, Kind.DEAD_LETTER]
    assert shipping.ran == 2  # it failed again, and the second letter of the old failure is late
    pair.send(ORDER, MessageAttributes=old["MessageAttributes"])
    assert kinds(rounds) == [Kind.DEAD_LETTER]
    assert shipping.ran == 2
    assert pair.redrive() == 3
    assert set(kinds(rounds)) == {Kind.REMOVE}
    assert shipping.ran == 3
    assert pair.are_empty()


def test_oncekey_redrive_moves_letters_of_this_queue_back_and_leaves_others(
    start: Start, pair: QueuePair
) -> None:
    shipping = Shipping(Terminal("no such address"))
    rounds = start(shipping)
    pair.send(ORDER)
    assert kinds(rounds) == [Kind.DEAD_LETTER]
    other = {"oncekey-source": {"DataType": "String", "StringValue": "arn:aws:sqs:x:1:other"}}
    client = pair.server.client()
    client.send_message(QueueUrl=pair.dead, MessageBody="other", MessageAttributes=other)
    assert rounds.redrive(10, "fixed the addresses") == 1
    assert [letter["Body"] for letter in pair.dead_letters()] == ["other"]
    assert kinds(rounds) == [Kind.REMOVE]
    assert shipping.ran == 2
    assert pair.server.is_empty(pair.source)


def test_a_message_without_a_key_is_a_dead_letter_and_is_not_run(
    start: Start, pair: QueuePair
) -> None:
    shipping = Shipping()
    pair.send('{"order": null}', "no JSON")
    assert kinds(start(shipping)) == [Kind.DEAD_LETTER, Kind.DEAD_LETTER]
    assert shipping.ran == 0
    errors = [marks(letter)["oncekey-error"] for letter in pair.dead_letters()]
    assert all("key" in error for error in errors)
    assert pair.server.is_empty(pair.source)


def test_an_unknown_outcome_is_parked_with_its_reason(start: Start, pair: QueuePair) -> None:
    class Died(BaseException):
        pass

    def dies(message: Message) -> None:
        raise Died

    park = pair.server.queue()
    rounds = start(dies, park_queue=park)
    pair.send(ORDER)
    (message,) = rounds.receive()
    with pytest.raises(Died):
        rounds.handle(message)
    rounds.settle([(message, STOPPED)])
    assert kinds(rounds) == [Kind.PARK]
    assert pair.are_empty()
    answer = pair.server.client().receive_message(QueueUrl=park, MessageAttributeNames=["All"])
    (parked,) = answer["Messages"]
    assert "OutcomeUnknown" in marks(parked)["oncekey-error"]


def test_a_delivery_id_is_a_key_only_together_with_its_queue(start: Start, pair: QueuePair) -> None:
    shipping = Shipping()
    rounds = start(shipping, key="delivery")
    pair.send(ORDER, ORDER)  # two messages, though of one order: that is what "delivery" means
    messages = rounds.receive()
    assert [rounds.handle(message).kind for message in messages] == [Kind.REMOVE] * 2
    assert shipping.ran == 2
    rounds.settle([(message, STOPPED) for message in messages])
    assert kinds(rounds) == [Kind.REMOVE] * 2  # delivered again, and known
    assert shipping.ran == 2
    assert pair.are_empty()
