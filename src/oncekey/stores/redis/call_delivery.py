"""Delivers a program's calls to the nodes that have their keys, and repeats what may be repeated.

Every script may be sent twice: a claim, a finish or a renewal of the same owner finds what its
first copy has done, and a replaced record is not replaced again. So a call whose reply was lost, or
that met a failover, is sent again until the call's end. Whether it may have taken effect is
remembered for the error that is raised if no reply ever comes.

    a new node, or flushed scripts (NOSCRIPT)     the script is loaded, and the call sent again
    a slot that has moved (MOVED, ASK)            the call is sent to where it went
    a replica, a loading server, a broken or      after a pause the call is sent again, on a cluster
    silent connection, a slot being moved         by a new table of slots
    a cluster's node that did not reply at all    the calls to it fail for a while, so that those to
                                                  other nodes, in the same batches, need not wait

A delivery is a generator: it yields what to send, and is sent what came back. This module must not
know redis-py, threads or asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.redis import errors
from oncekey.stores.redis.keyspace import Node, SingleNode, SlotTable, redirected
from oncekey.stores.redis.scripts import EVERY_NODE, Answer, Call, Calls, scripts
from oncekey.stores.server_watch import CircuitBreaker

T = TypeVar("T")

PAUSE_FIRST_SECONDS: Final = 0.01
PAUSE_MAX_SECONDS: Final = 0.25
REDIRECTIONS_MAX: Final = 16
# For how long calls are repeated while the answers to others of their batch wait for them.
BESIDE_OTHERS_SECONDS: Final = 1.0


class Batch(NamedTuple):
    """Commands for one node, to be sent at once."""

    node: Node
    commands: list[tuple[Any, ...]]


class Send(NamedTuple):
    """Send each batch, and receive as many responses as it has commands, until a deadline."""

    batches: list[Batch]
    deadline: float


class Pause(NamedTuple):
    """Wait for so long."""

    seconds: float


class Failure(NamedTuple):
    """A batch without responses.

    is_sent     some of it may have reached the server
    is_silent   nothing came in time
    """

    error: BaseException
    is_sent: bool
    is_silent: bool


# The responses of a batch; a server's error is a value among them.
Outcome = list[Any] | Failure
Delivery = Generator[Send | Pause, Sequence[Outcome], T]


class _Pending:
    """A call on its way. `node` is set where it does not follow from the bucket."""

    def __init__(self, position: int, call: Call, node: Node | None = None) -> None:
        self.position = position
        self.call = call
        self.node = node
        self.asks: Node | None = None
        self.loads = False
        self.ambiguous = False  # True if an earlier try may have taken effect
        self.repeats = True  # False once the server has refused it for good
        self.answer: Answer = None
        self.error: StoreUnavailable | None = None

    def commands(self) -> Iterator[tuple[Any, ...]]:
        """What to send for it; the last command is the call itself."""
        if self.loads:
            yield (b"SCRIPT", b"LOAD", scripts()[self.call.script].text)
        if self.asks is not None:
            yield (b"ASKING",)
        yield self.call.words


class CallDelivery:
    """Delivers calls to the nodes of one store."""

    def __init__(
        self,
        table: SingleNode | SlotTable,
        reply_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self._reply_seconds = reply_seconds
        self._now = now
        self._silent_nodes: dict[Node, CircuitBreaker] = {}

    def run(self, program: Calls[T], end: float) -> Delivery[T]:
        """Run a program until `end` at the latest."""
        written = False
        try:
            calls = next(program)
            while True:
                answers = yield from self._deliver(calls, end)
                written = written or any(
                    call.is_write and not isinstance(answer, StoreUnavailable)
                    for call, answer in zip(calls, answers, strict=True)
                )
                calls = program.send(answers)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except StoreUnavailable as error:
            if written:
                error.ambiguous = True  # an earlier call has taken effect (S5)
            raise

    def _deliver(self, calls: Sequence[Call], end: float) -> Delivery[list[Answer]]:
        """The answer to each call; an error in its place if there is none."""
        if isinstance(self.table, SlotTable) and self.table.needs_refresh:
            yield from self._refresh(self.table, end)
        sent = [pending for at, call in enumerate(calls) for pending in self._placed(at, call)]
        left, pause, redirections, is_waited_for = sent, PAUSE_FIRST_SECONDS, 0, False
        while left and self._now() < end:
            is_redirected = yield from self._send(left, end)
            left = [pending for pending in left if self._is_open(pending)]
            if not left:
                break
            if is_redirected and redirections < REDIRECTIONS_MAX:
                redirections += 1
                continue
            if not is_waited_for and self.table.is_cluster and any(map(_is_answered, sent)):
                is_waited_for, end = True, min(end, self._now() + BESIDE_OTHERS_SECONDS)
            if self._now() + pause >= end:
                break
            yield Pause(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)
            if isinstance(self.table, SlotTable) and self.table.needs_refresh:
                yield from self._refresh(self.table, end)
        return _answers(calls, sent)

    def _placed(self, position: int, call: Call) -> list[_Pending]:
        if call.bucket != EVERY_NODE:
            return [_Pending(position, call)]
        return [_Pending(position, call, node) for node in self.table.nodes()]

    def _is_open(self, pending: _Pending) -> bool:
        """True if the call has to be sent again."""
        if pending.answer is not None or not pending.repeats:
            return False
        return pending.node is None or pending.node in self.table.nodes()

    def _send(self, left: Sequence[_Pending], end: float) -> Delivery[bool]:
        """Send calls once. True if some of them may be sent again at once."""
        by_node: dict[Node, list[_Pending]] = {}
        for pending in left:
            node = pending.asks or pending.node or self.table.node_of(pending.call.bucket)
            if node is None:
                pending.error = _unserved(pending.ambiguous)
            else:
                by_node.setdefault(node, []).append(pending)
        trials = self._enter(by_node)
        batches = [
            Batch(node, [command for pending in own for command in pending.commands()])
            for node, own in by_node.items()
        ]
        if not batches:
            return False
        deadline = min(self._now() + self._reply_seconds, end)
        outcomes = yield Send(batches, deadline)
        is_redirected = False
        for (node, own), outcome in zip(by_node.items(), outcomes, strict=True):
            if node in trials:
                is_silent = isinstance(outcome, Failure) and outcome.is_silent
                self._silent_nodes[node].leave(trials[node], replied=not is_silent)
            if isinstance(outcome, Failure):
                self._note_failure(node, own, outcome)
                continue
            responses = iter(outcome)
            for pending in own:
                for _ in range(pending.loads + (pending.asks is not None)):
                    next(responses)
                is_redirected |= self._receive(pending, node, next(responses))
        return is_redirected

    def _enter(self, by_node: dict[Node, list[_Pending]]) -> dict[Node, bool]:
        """Take out the calls to nodes of a cluster that were silent just now, and let them fail.
        Returns the other nodes, and whether this is the call that tries one again."""
        trials: dict[Node, bool] = {}
        if not self.table.is_cluster:
            return trials  # the store as a whole has a circuit breaker
        for node in list(by_node):
            seconds = self._reply_seconds
            fresh = CircuitBreaker(seconds, self._now, rest_seconds=seconds)
            try:
                trials[node] = self._silent_nodes.setdefault(node, fresh).enter()
            except StoreUnavailable as error:
                for pending in by_node.pop(node):
                    pending.repeats = False
                    pending.error = pending.error or error
        return trials

    def _note_failure(self, node: Node, own: Sequence[_Pending], failure: Failure) -> None:
        self.table.note_failure(node)
        for pending in own:
            pending.asks = None
            if failure.is_sent and pending.call.is_write:
                pending.ambiguous = True
            pending.error = errors.translate_failure(
                failure.error,
                is_sent=failure.is_sent,
                is_silent=failure.is_silent,
                ambiguous=pending.ambiguous,
            )
            pending.repeats = failure.is_sent or not errors.is_login_refused(failure.error)

    def _receive(self, pending: _Pending, node: Node, response: Any) -> bool:
        """Take in a response. True if the call should be sent again at once."""
        asked, pending.asks = pending.asks, None
        was_loaded, pending.loads = pending.loads, False
        if not isinstance(response, Exception):
            pending.answer = response
            return False
        code = errors.code_of(response)
        pending.error = errors.translate_response(response, ambiguous=pending.ambiguous)
        if code == errors.NO_SCRIPT:
            # The node that imports a slot is often new: it gets the script and is asked once more.
            pending.loads, pending.asks = True, asked
            return not was_loaded
        if isinstance(self.table, SlotTable) and code in (errors.MOVED, errors.ASK):
            slot, target = redirected(str(response), node)
            if code == errors.ASK:
                pending.asks = target
            else:
                self.table.move(slot, target)
            return True
        if errors.is_repeated(response):
            self.table.note_failure(node)
        elif pending.call.script:
            pending.repeats = False
        else:
            pending.answer = response  # a plain command's error is its answer
        return False

    def _refresh(self, table: SlotTable, end: float) -> Delivery[None]:
        """Read the table of slots from the first node that knows it."""
        error: StoreUnavailable | None = None
        for node in table.candidates():
            deadline = min(self._now() + self._reply_seconds, end)
            if deadline <= self._now():
                break
            (outcome,) = yield Send([Batch(node, [(b"CLUSTER", b"SLOTS")])], deadline)
            if isinstance(outcome, Failure):
                error = errors.translate_failure(
                    outcome.error, is_sent=False, is_silent=outcome.is_silent, ambiguous=False
                )
            elif isinstance(outcome[0], Exception):
                error = errors.translate_response(outcome[0], ambiguous=False)
            elif table.read(outcome[0], node):
                return
        if not table.nodes():
            raise error or _unserved(False)


def _is_answered(pending: _Pending) -> bool:
    """True if somebody waits for the answer that a call has; nobody does for servers' settings."""
    return pending.answer is not None and pending.call.bucket != EVERY_NODE


def _answers(calls: Sequence[Call], sent: Sequence[_Pending]) -> list[Answer]:
    answers: list[Answer] = [[] if call.bucket == EVERY_NODE else None for call in calls]
    for pending in sent:
        answer = pending.answer
        if answer is None:
            answer = pending.error or _no_time()
        if pending.call.bucket != EVERY_NODE or isinstance(answer, StoreUnavailable):
            answers[pending.position] = answer
        else:
            each = answers[pending.position]
            if isinstance(each, list):
                each.append(answer)
    return answers


def _no_time() -> StoreUnavailable:
    return StoreUnavailable("the call's time was over before anything was sent", ambiguous=False)


def _unserved(ambiguous: bool) -> StoreUnavailable:
    return StoreUnavailable("no node of the cluster has the key's slot", ambiguous=ambiguous)
