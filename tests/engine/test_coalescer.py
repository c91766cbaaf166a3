"""Coalescer: batches of commands from threads, formed without timers; no caller is left waiting."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from tests.support.coalescer_replies import reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.batch import BATCH_MAX
from oncekey.engine.batches.coalescer import Coalescer

PATIENCE = 60.0


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


def number_of(command: Command) -> int:
    return int.from_bytes(command.id, "big")


def replies_to(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, number_of(command)) for command in commands]


class Store:
    """A store that records its batches; the first one waits at the gate, as a slow commit would."""

    def __init__(self, answer: Callable[[Sequence[Command]], list[Reply]] = replies_to) -> None:
        self.batches: list[list[int]] = []
        self.answer = answer
        self.entered = threading.Event()
        self.gate = threading.Event()

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        self.batches.append([number_of(command) for command in commands])
        if not self.entered.is_set():
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        return self.answer(commands)


class Callers:
    """Callers in threads: one leader is at the store, the others queue up one after the other."""

    def __init__(self, store: Store, count: int, **options: Any) -> None:
        self.coalescer = Coalescer(store.apply, **options)
        self.futures: list[Future[Reply]] = []
        self.threads: list[threading.Thread] = []
        self._start(0)
        assert store.entered.wait(PATIENCE)
        for number in range(1, count):
            self._start(number)
            self._until_queued(number)
        store.gate.set()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "left waiting"

    def _start(self, number: int) -> None:
        future: Future[Reply] = Future()
        self.futures.append(future)

        def call() -> None:
            try:
                future.set_result(reply_of(self.coalescer, look(number)))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=call, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _until_queued(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.coalescer._queue) < count:
            assert time.monotonic() < deadline, f"never {count} in the queue"
            time.sleep(0.0002)

    def outcomes(self) -> list[Any]:
        """Each caller's number in the store's reply, or its error."""
        return [_outcome(future) for future in self.futures]


def _outcome(future: Future[Reply]) -> Any:
    error = future.exception(0)
    reply = future.result(0) if error is None else None
    return reply.now if isinstance(reply, Seen) else error


# --- forming batches ----------------------------------------------------------------------------


def test_a_single_command_is_sent_at_once_in_a_batch_of_its_own() -> None:
    store = Store()
    store.entered.set()
    coalescer = Coalescer(store.apply)
    assert [reply_of(coalescer, look(number)) for number in range(3)] == replies_to(
        [look(0), look(1), look(2)]
    )
    assert store.batches == [[0], [1], [2]]


def test_commands_that_come_while_a_batch_is_in_flight_form_the_next_batch() -> None:
    store = Store()
    callers = Callers(store, 64)
    assert store.batches == [[0], list(range(1, 64))], "in the order they came"
    assert callers.outcomes() == list(range(64)), "each has its own reply"


def test_a_batch_has_at_most_the_given_number_of_commands() -> None:
    store = Store()
    callers = Callers(store, 8, most=3)
    assert store.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert callers.outcomes() == list(range(8))


def test_after_full_batches_a_single_command_is_sent_at_once_again() -> None:
    store = Store()
    callers = Callers(store, 5)
    assert reply_of(callers.coalescer, look(9)) == Seen(None, 9)
    assert store.batches[-1] == [9]


# --- failures -----------------------------------------------------------------------------------


def refusing(*poisoned: int) -> Callable[[Sequence[Command]], list[Reply]]:
    def answer(commands: Sequence[Command]) -> list[Reply]:
        for command in commands:
            if number_of(command) in poisoned:
                raise ValueError(f"cannot store {number_of(command)}")
        return replies_to(commands)

    return answer


def test_a_command_the_store_raises_for_fails_alone() -> None:
    store = Store(refusing(2, 4))
    outcomes = Callers(store, 6).outcomes()
    assert [type(outcome) for outcome in outcomes] == [
        int,
        int,
        StoreUnavailable,
        int,
        StoreUnavailable,
        int,
    ]
    for number in (2, 4):
        assert str(outcomes[number]) == f"the store raised ValueError: cannot store {number}"
        assert outcomes[number].ambiguous
    assert store.batches == [[0], [1, 2, 3, 4, 5], [1], [2], [3], [4], [5]]


def test_an_unavailable_store_fails_the_whole_batch_without_a_second_call() -> None:
    def down(commands: Sequence[Command]) -> list[Reply]:
        raise StoreUnavailable("gone")

    store = Store(down)
    outcomes = Callers(store, 5).outcomes()
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert len(store.batches) == 2


@pytest.mark.parametrize("extra", [-1, 1])
def test_i8_a_batch_with_too_few_or_too_many_replies_fails_for_every_caller(extra: int) -> None:
    def miscounting(commands: Sequence[Command]) -> list[Reply]:
        return (replies_to(commands) * 2)[: max(0, len(commands) + extra)]

    outcomes = Callers(Store(miscounting), 4).outcomes()
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 4
    assert "replies to 1 commands" in str(outcomes[0])


def test_commands_are_sent_one_by_one_to_a_store_that_miscounts_batches() -> None:
    def miscounting(commands: Sequence[Command]) -> list[Reply]:
        return replies_to(commands)[:1]

    assert Callers(Store(miscounting), 4).outcomes() == list(range(4))


class Stop(BaseException):
    """Raised by a signal handler in the thread of a leader."""


def test_an_interrupted_leader_leaves_no_caller_waiting() -> None:
    def interrupted(commands: Sequence[Command]) -> list[Reply]:
        if len(commands) > 1:
            raise Stop
        return replies_to(commands)

    callers = Callers(Store(interrupted), 5)
    kinds = [type(outcome) for outcome in callers.outcomes()]
    assert kinds == [int, Stop, StoreUnavailable, StoreUnavailable, StoreUnavailable]
    assert reply_of(callers.coalescer, look(7)) == Seen(None, 7), "and goes on working"


def test_a_leader_interrupted_without_followers_passes_the_lead_on() -> None:
    def interrupted(commands: Sequence[Command]) -> list[Reply]:
        if number_of(commands[0]) == 0:
            raise Stop
        return replies_to(commands)

    outcomes = Callers(Store(interrupted), 4).outcomes()
    assert type(outcomes[0]) is Stop
    assert outcomes[1:] == [1, 2, 3]


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_follower_leaves_no_caller_behind_it_waiting(times: int) -> None:
    """Ctrl-C in the main thread while it queues: it leaves once its command was applied, and at a
    second Ctrl-C at once. Then it becomes the leader although it has left."""
    store = Store()
    coalescer = Coalescer(store.apply)
    leader = threading.Thread(target=reply_of, args=(coalescer, look(0)), daemon=True)
    leader.start()
    assert store.entered.wait(PATIENCE)
    main = threading.main_thread().ident
    assert main is not None

    stopped = threading.Event()
    stops = 0

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE
        while len(coalescer._queue) < 1:
            assert time.monotonic() < deadline, "the main thread never queued up"
            time.sleep(0.0002)
        # In a loop, because a signal directly before the thread begins to wait is not seen.
        while not stopped.wait(0.005):
            signal.pthread_kill(main, signal.SIGUSR1)
        if times == 1:
            store.gate.set()

    def stop(*_: object) -> None:
        nonlocal stops
        if stops < times:
            stops += 1
            if stops == times:
                stopped.set()
            raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    helper = threading.Thread(target=interrupt, daemon=True)
    try:
        helper.start()
        with pytest.raises(Stop):
            reply_of(coalescer, look(1))
    finally:
        helper.join(PATIENCE)
        signal.signal(signal.SIGUSR1, before)
        store.gate.set()
    leader.join(PATIENCE)
    behind = threading.Thread(target=reply_of, args=(coalescer, look(2)), daemon=True)
    behind.start()
    behind.join(PATIENCE)
    assert not behind.is_alive(), "left waiting"
    assert sorted(number for batch in store.batches for number in batch) == [0, 1, 2]


# --- several commands of one caller ---------------------------------------------------------------


def test_apply_many_returns_results_in_the_order_of_the_commands() -> None:
    store = Store(refusing(3))
    store.entered.set()
    answers = Coalescer(store.apply).apply_many([look(number) for number in range(5)])
    kinds = [type(answer.reply) for answer in answers]
    assert kinds == [Seen, Seen, Seen, StoreUnavailable, Seen]
    assert Coalescer(store.apply).apply_many([]) == []


def test_apply_many_splits_commands_into_batches() -> None:
    store = Store()
    store.entered.set()
    count = BATCH_MAX + 5
    answers = Coalescer(store.apply).apply_many([look(number) for number in range(count)])
    assert [answer.reply for answer in answers] == replies_to(
        [look(number) for number in range(count)]
    )
    assert [len(batch) for batch in store.batches] == [BATCH_MAX, 5]


def test_each_of_many_threads_gets_its_own_reply() -> None:
    coalescer = Coalescer(replies_to)
    wrong: list[object] = []

    def work(first: int) -> None:
        for number in range(first, first + 300):
            if reply_of(coalescer, look(number)) != Seen(None, number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n * 1_000,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
