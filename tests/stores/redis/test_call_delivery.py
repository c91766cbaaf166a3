"""Calls are delivered to the right node, repeated where that is safe, and given up in time.

No server: a script says what comes back. Each test reads what was sent (I9, S5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.redis.call_delivery import CallDelivery, Failure, Pause, Send
from oncekey.stores.redis.errors import NoReply
from oncekey.stores.redis.keyspace import BUCKET_SLOTS, Node, SingleNode, SlotTable
from oncekey.stores.redis.scripts import EVERY_NODE, Call

ONE, TWO, THREE = Node("one", 1), Node("two", 2), Node("three", 3)
CLAIM = Call("claim", 0, [b"key"], (b"", 1, b""))
FAR = Call("claim", 255, [b"other"], (b"", 1, b""))
LOOK = Call("look", 0, [b"key"], (b"", 1))
BROKEN = Failure(OSError("broken"), is_sent=True, is_silent=False)
REFUSED = Failure(OSError("refused"), is_sent=False, is_silent=False)
SILENT = Failure(TimeoutError(), is_sent=True, is_silent=True)
HALVES = [[0, 8_191, [b"one", 1]], [8_192, 16_383, [b"two", 2]]]


class ServerError(Exception):
    """An error as redis-py gives it: the code is cut from the message."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message)
        self.status_code = code


class Network:
    """Answers what a test says, and remembers what was sent to whom."""

    def __init__(self, *replies: Any, cluster: bool = False) -> None:
        self.table: Any = SlotTable([ONE]) if cluster else SingleNode(ONE)
        self.replies = list(replies)
        self.sent: list[tuple[str, list[bytes]]] = []
        self.now = 0.0
        self.pauses = 0

    def run(self, *calls: Call, seconds: float = 5.0) -> list[Any]:
        delivery = CallDelivery(self.table, 1.0, lambda: self.now)

        def program() -> Any:
            return (yield list(calls))

        running = delivery.run(program(), self.now + seconds)
        outcomes: Any = None
        while True:
            try:
                outcomes = self._outcomes(running.send(outcomes))
            except StopIteration as stop:
                answers: list[Any] = stop.value
                return answers

    def _outcomes(self, effect: Send | Pause) -> list[Any]:
        if isinstance(effect, Pause):
            self.now += effect.seconds
            self.pauses += 1
            return []
        return [self._outcome(node, commands) for node, commands in effect.batches]

    def _outcome(self, node: Node, commands: list[tuple[Any, ...]]) -> Any:
        self.sent.append((node.host, [command[0] for command in commands]))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Failure):
            self.now += 1.0 if reply.is_silent else 0.0
            return reply
        return reply if isinstance(reply, list) else [reply] * len(commands)


def test_a_reply_is_the_answer() -> None:
    network = Network([[17]])
    assert network.run(CLAIM) == [[17]]
    assert network.sent == [("one", [b"EVALSHA"])]


def test_a_script_that_the_server_does_not_know_is_loaded_with_the_next_try() -> None:
    network = Network([ServerError("NOSCRIPT")], [b"digest", [17]])
    assert network.run(CLAIM) == [[17]]
    assert network.sent[1] == ("one", [b"SCRIPT", b"EVALSHA"])
    assert network.pauses == 0


@pytest.mark.parametrize(
    "code", ["TRYAGAIN", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS"]
)
def test_what_passes_is_repeated_until_the_end_and_was_not_done(code: str) -> None:
    network = Network([ServerError(code, "for now")])
    (error,) = network.run(CLAIM)
    assert isinstance(error, StoreUnavailable)
    assert not error.ambiguous
    assert len(network.sent) > 5
    assert network.now <= 5.0
    again = Network([ServerError(code)], [[17]])
    assert again.run(CLAIM) == [[17]]


@pytest.mark.parametrize("code", ["OOM", "NOPERM", "MISCONF", "WRONGPASS"])
def test_what_does_not_pass_is_not_repeated(code: str) -> None:
    network = Network([ServerError(code)])
    (error,) = network.run(CLAIM)
    assert not error.ambiguous
    assert len(network.sent) == 1


def test_an_unknown_error_may_have_stopped_a_script_halfway() -> None:
    (error,) = Network([ServerError("ERR", "user_script:7")]).run(CLAIM)
    assert error.ambiguous


def test_i9_a_claim_whose_reply_was_lost_is_sent_again() -> None:
    network = Network(BROKEN, [[17]])
    assert network.run(CLAIM) == [[17]]


@pytest.mark.parametrize(
    ("replies", "call", "ambiguous"),
    [
        ([BROKEN], CLAIM, True),
        ([SILENT], CLAIM, True),
        ([REFUSED], CLAIM, False),
        ([BROKEN, REFUSED], CLAIM, True),
        ([BROKEN, [ServerError("OOM")]], CLAIM, True),
        ([BROKEN], LOOK, False),
    ],
    ids=["broken", "silent", "refused", "broken once", "broken, then full", "a read"],
)
def test_s5_an_error_is_ambiguous_if_any_try_may_have_reached_the_server(
    replies: list[Any], call: Call, ambiguous: bool
) -> None:
    (error,) = Network(*replies).run(call)
    assert error.ambiguous is ambiguous


def test_a_server_that_never_replies_costs_the_time_of_one_call() -> None:
    network = Network(SILENT)
    (error,) = network.run(CLAIM)
    assert isinstance(error, NoReply)
    assert network.now <= 6.0


def test_nothing_is_sent_when_the_time_is_over() -> None:
    network = Network([[17]])
    (error,) = network.run(CLAIM, seconds=0.0)
    assert not error.ambiguous
    assert network.sent == []


# --- a cluster ------------------------------------------------------------------------------------


def test_each_call_goes_to_the_node_that_has_its_bucket() -> None:
    network = Network([HALVES], [[1]], [[2]], cluster=True)
    assert network.run(CLAIM, FAR) == [[1], [2]]
    assert [host for host, _ in network.sent] == ["one", "one", "two"]


def test_a_moved_slot_is_followed_at_once_and_remembered() -> None:
    moved = ServerError("MOVED", f"{BUCKET_SLOTS[0]} three:3")
    network = Network([HALVES], [moved], [[1]], cluster=True)
    assert network.run(CLAIM) == [[1]]
    assert network.sent[-1][0] == "three"
    assert network.pauses == 0
    assert network.table.node_of(0) == THREE


def test_a_slot_on_its_way_is_asked_for_once_and_the_table_stays() -> None:
    ask = ServerError("ASK", f"{BUCKET_SLOTS[0]} three:3")
    network = Network([HALVES], [ask], [b"OK", [1]], cluster=True)
    assert network.run(CLAIM) == [[1]]
    assert network.sent[-1] == ("three", [b"ASKING", b"EVALSHA"])
    assert network.table.node_of(0) == ONE


def test_a_lost_node_makes_the_table_be_read_again() -> None:
    replaced = [[0, 8_191, [b"three", 3]], HALVES[1]]
    network = Network([HALVES], BROKEN, [replaced], [[1]], cluster=True)
    assert network.run(CLAIM) == [[1]]
    assert network.sent[-1][0] == "three"


def test_s2_one_lost_node_fails_its_own_calls_only() -> None:
    network = Network([HALVES], cluster=True)

    def outcome(node: Node, commands: list[tuple[Any, ...]]) -> Any:
        if commands[0][0] == b"CLUSTER":
            return [HALVES]
        return REFUSED if node == TWO else [[1]]

    network._outcome = outcome  # type: ignore[method-assign]
    first, second = network.run(CLAIM, FAR)
    assert first == [1]
    assert isinstance(second, StoreUnavailable)
    assert not second.ambiguous


def test_a_node_without_a_host_of_its_own_is_the_one_that_was_asked() -> None:
    table = SlotTable([ONE])
    assert table.read([[0, 16_383, [b"", 7]]], ONE)
    assert table.nodes() == [Node("one", 7)]


def test_what_is_for_every_node_is_sent_to_every_master_once() -> None:
    info = Call("", EVERY_NODE, (), ("INFO",))
    network = Network([HALVES], [b"a"], [ServerError("NOPERM")], cluster=True)
    ((first, second),) = network.run(info)
    assert first == b"a"
    assert isinstance(second, ServerError)  # a plain command's error is its answer
    assert [host for host, _ in network.sent] == ["one", "one", "two"]


def test_slots_that_nobody_serves_are_an_error_of_their_keys() -> None:
    network = Network([[HALVES[0]]], [[1]], cluster=True)
    replies: dict[bytes, Callable[[], Any]] = {b"CLUSTER": lambda: [[HALVES[0]]]}
    network._outcome = lambda node, commands: replies.get(  # type: ignore[method-assign]
        commands[0][0], lambda: [[1]]
    )()
    first, second = network.run(CLAIM, FAR)
    assert first == [1]
    assert "no node" in str(second)
