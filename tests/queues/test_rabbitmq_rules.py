"""The pure parts of the RabbitMQ package: delays, facts, copies, programs with scripted calls."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import REMOVE, STOPPED, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.message import (
    Delivery,
    delay_arguments,
    delay_step,
    message_of,
)
from oncekey.queues.rabbitmq.program import (
    Ack,
    AckTaken,
    ChannelProgram,
    CountMessages,
    Declare,
    Program,
    Publish,
    Requeue,
    Subscribe,
    Take,
    Unsubscribe,
)
from oncekey.queues.rabbitmq.settings import (
    QueueReport,
    ask_management,
    facts_of,
    names_of,
    parse_report,
    parse_version,
    virtual_host,
    warnings_of,
)
from oncekey.queues.redrive import to_the_end

NAMES = names_of("orders", None, None)
RETRY = Disposition(Kind.RETRY, 1.5)


def message(tag: int, **properties: Any) -> Message:
    delivery = Delivery(None, tag, properties, "", "orders", False, None)
    return message_of(delivery, b"{}", "orders")


def program_with(*tags: int) -> ChannelProgram:
    program = ChannelProgram(NAMES, (4, 3, 6))
    program.unsettled = dict.fromkeys(tags)
    program.is_subscribed = True
    return program


def calls_of(program: Program[Any], *failures: list[str | None]) -> list[Any]:
    """Every call of a program; its publishes end with the given failures, then with none."""
    calls: list[Any] = []
    left, result = list(failures), None
    while True:
        try:
            call = program.send(result)
        except StopIteration:
            return calls
        calls.append(call)
        result = None
        if isinstance(call, Publish):
            result = left.pop(0) if left else [None] * len(call.letters)


# --- delays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "step"),
    [(0, 0.125), (0.125, 0.125), (0.13, 0.25), (1, 1), (1.01, 2), (30.5, 32), (9_999, 4_096)],
)
def test_a_delay_is_the_next_step_that_is_long_enough(asked: float, step: float) -> None:
    assert delay_step(asked) == step


def test_a_delay_queue_hands_over_with_confirms_where_it_can() -> None:
    assert NAMES.delay_queue(0.125) == "orders.delay.125ms"
    new, old = (delay_arguments(NAMES, 2.0, version) for version in ((3, 10), (3, 9)))
    assert new["x-dead-letter-strategy"] == "at-least-once"
    assert old == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "orders",
        "x-message-ttl": 2_000,
    }


# --- programs -------------------------------------------------------------------------------------


def test_what_was_delivered_in_a_row_is_acked_at_once() -> None:
    program = program_with(1, 2, 3, 5)
    settled: list[Settled] = [(message(tag), REMOVE) for tag in (5, 2, 1)]
    assert calls_of(program.settle(settled)) == [Ack(2, up_to=True), Ack(5)]
    assert list(program.unsettled) == [3]


def test_a_message_is_acked_only_after_its_copy_is_confirmed() -> None:
    program = program_with(7)
    declare, publish, ack = calls_of(program.settle([(message(7), RETRY)]))
    assert isinstance(declare, Declare)
    assert [letter.queue for letter in publish.letters] == ["orders.delay.2000ms"]
    assert ack == Ack(7, up_to=True)


def test_a_message_whose_copies_are_refused_is_not_acked() -> None:
    program = program_with(7)
    steps = program.settle([(message(7), RETRY)])
    with pytest.raises(BrokerUnavailable):
        calls_of(steps, ["full"], ["full"])
    assert list(program.unsettled) == [7]


def test_a_message_is_given_back_only_after_the_subscription_has_ended() -> None:
    program = program_with(1)
    assert calls_of(program.settle([(message(1), STOPPED)])) == [Unsubscribe(), Requeue(1)]
    assert calls_of(program.subscribe(8)) == [Subscribe("orders", 8)]
    assert calls_of(program.subscribe(8)) == []


def test_a_delivery_that_was_settled_before_settles_nothing() -> None:
    assert calls_of(program_with(2).settle([(message(1), REMOVE)])) == []


def test_a_queue_delays_by_itself_what_it_delays_for_long_enough() -> None:
    program = program_with(1, 2)
    program.retry_delay = 1.0
    hidden = Disposition(Kind.HIDE, 30.5)
    calls = calls_of(program.settle([(message(1), RETRY), (message(2), hidden)]))
    assert calls[-1] == Requeue(1)
    assert Ack(2) in calls


def test_leaving_gives_back_what_is_not_settled() -> None:
    assert calls_of(program_with(4, 5).leave()) == [Unsubscribe(), Requeue(0)]


def test_a_letter_that_fails_again_is_not_redriven_in_the_same_round() -> None:
    steps = program_with().redrive(100, "monday", False, to_the_end)
    assert next(steps) == CountMessages("orders.dead")
    assert steps.send(1) == Take("orders.dead")
    publish = steps.send(message(3))
    assert isinstance(publish, Publish)
    (letter,) = publish.letters
    assert letter.queue == "orders"
    assert letter.properties["headers"] == {"oncekey-redrive": "monday"}
    assert steps.send([None]) == AckTaken(3)
    with pytest.raises(StopIteration) as moved:
        steps.send(None)
    assert moved.value.value == 1


def test_a_missing_queue_is_refused() -> None:
    steps = program_with().prepare(declare=False)
    with pytest.raises(ConfigurationError, match="declare=True"):
        calls_of(steps)
    assert CountMessages("orders") in calls_of(program_with().prepare(declare=True))


# --- facts ----------------------------------------------------------------------------------------


def report_of(version: tuple[int, ...] = (4, 3), /, **answer: Any) -> QueueReport:
    return parse_report({"type": "quorum", **answer}, version)


def test_the_shorter_of_argument_and_policy_counts() -> None:
    report = report_of(
        arguments={"x-message-ttl": 9_000}, effective_policy_definition={"message-ttl": 5_000}
    )
    assert report.ttl == 5


def test_only_a_delay_of_what_is_given_back_is_used() -> None:
    def delay(kind: str, version: tuple[int, ...] = (4, 3)) -> float | None:
        policy = {"delayed-retry-type": kind, "delayed-retry-min": 2_000}
        return report_of(version, effective_policy_definition=policy).retry_delay

    assert [delay(kind) for kind in ("all", "returned", "failed", "disabled")] == [2, 2, None, None]
    assert delay("all", (4, 2)) is None


def test_delivery_limits_by_version() -> None:
    assert report_of().delivery_limit == 20
    assert report_of((3, 13)).delivery_limit is None
    assert report_of(arguments={"x-delivery-limit": -1}).delivery_limit is None
    assert parse_report({"type": "classic"}, (4, 3)).delivery_limit is None


def facts(report: QueueReport | None, version: tuple[int, ...] = (4, 3)) -> BrokerFacts:
    return facts_of("orders", version, report, identity=None, consumer_timeout=None)


def test_facts_without_and_with_a_report() -> None:
    assert facts(None) == BrokerFacts("orders", retention=math.inf, hold_max=1_800)
    told = facts(report_of(arguments={"x-consumer-timeout": 60_000}))
    assert told == BrokerFacts("orders", retention=math.inf, hold_max=60, receives_max=21)


def test_a_classic_queue_has_no_consumer_timeout_from_4_3_on() -> None:
    report = QueueReport(is_quorum=False)
    assert facts(report).hold_max is None
    assert facts(report, (4, 2)).hold_max == 1_800


def test_a_queue_that_loses_messages_is_warned_of() -> None:
    lossy = QueueReport(True, 60.0, 3_600.0, 20, has_dead_letters=False)
    texts = list(warnings_of("orders", lossy))
    assert ["drops" in text or "removed" in text for text in texts] == [True] * 3
    assert list(warnings_of("orders", QueueReport(True, 60.0, None, 20))) == []


def test_versions_and_virtual_hosts() -> None:
    assert parse_version({"product": "RabbitMQ", "version": "4.3.6"}) == (4, 3, 6)
    assert parse_version({"product": b"RabbitMQ", "version": b"4.0.0-rc.1"}) == (4, 0, 0)
    assert parse_version({"product": "LavinMQ", "version": "2.4.0"}) == (0,)
    assert [virtual_host(f"amqp://h{path}") for path in ("", "/", "/%2F", "/shop")] == [
        "/",
        "/",
        "/",
        "shop",
    ]


def test_a_management_url_that_cannot_be_one_is_refused() -> None:
    for url in ("amqp://host", "http://", "host:15672"):
        with pytest.raises(ConfigurationError, match="management_url"):
            ask_management(url, "/", "orders")


# --- messages -------------------------------------------------------------------------------------


def test_headers_are_text_and_properties_are_found_like_them() -> None:
    headers = {"Tenant": b"acme", "n": 3, "yes": True, "raw": b"\xff", "list": [1], "type": "own"}
    found = message(1, message_id="m-1", type="order", headers=headers).headers
    assert found == {"message-id": "m-1", "tenant": "acme", "n": "3", "type": "own"}


def test_deliveries_are_counted_across_delays() -> None:
    assert message(1).receive_count == 1
    assert message(1, headers={"x-acquired-count": 2}).receive_count == 3
    counted = {"x-delivery-count": 1, "oncekey-receives": "4"}
    assert message(1, headers=counted).receive_count == 6
    assert message(1, headers={"oncekey-receives": "none"}).receive_count == 1
