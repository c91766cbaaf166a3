"""The current attempt and step: what code far below a body sees in its thread, and until when.

Tasks are in test_context_in_tasks.py.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from tests.engine.current_context import NOTHING, Seen, current

from oncekey import Once, Terminal, current_attempt, current_step
from oncekey.engine.attempts.attempt_steps import RunningStep


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as made:
        yield made


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


# --- bodies and steps -----------------------------------------------------------------------------


def test_the_attempt_and_its_step_are_current_in_body_and_step(once: Once) -> None:
    def body(attempt: Any) -> None:
        assert current() == (attempt, None)
        assert attempt.step("pay", lambda key: current()[1]) == "pay"
        assert current() == (attempt, None)
        assert attempt.step("tell", lambda key, to: current()[1], request={"to": 1}) == "tell"

    assert current() == NOTHING
    once.run("op", "k", body)
    assert current() == NOTHING


def test_the_attempt_is_current_in_a_guarded_function(once: Once) -> None:
    @once.guard("op", key=lambda name: name)
    def greet(name: str) -> str:
        attempt = current_attempt()
        assert attempt is not None
        return f"{attempt.operation} {attempt.key}"

    assert greet("k") == "op k"
    assert greet("k") == "op k"  # the replay


def test_the_attempt_is_current_in_a_transaction(tmp_path: Path) -> None:
    with Once(f"sqlite:///{tmp_path}/keys.db") as once:
        db = sqlite3.connect(tmp_path / "keys.db")

        def body(attempt: Any) -> str | None:
            assert current() == (attempt, None)
            name: str | None = attempt.step("pay", lambda key: current()[1])
            return name

        with db:
            assert once.in_transaction(db).run("op", "k", body).value == "pay"
        db.close()
        assert current() == NOTHING


@pytest.mark.parametrize("error", [ValueError, Terminal, KeyboardInterrupt])
def test_nothing_is_current_after_a_body_or_step_that_raised(
    once: Once, error: type[BaseException]
) -> None:
    def fail(key: str) -> None:
        raise error

    def body(attempt: Any) -> None:
        with pytest.raises(error):
            attempt.step("pay", fail)
        assert current() == (attempt, None)
        raise error

    with pytest.raises(error):
        once.run("op", "k", body)
    assert current() == NOTHING


def test_a_skipped_or_probed_step_is_not_current(once: Once) -> None:
    """A probe only reads, so it has no key to send."""
    seen: list[Seen] = []

    def fail(key: str) -> None:
        raise ConnectionError

    def body(attempt: Any) -> None:
        def probe(key: str) -> str:
            seen.append(current())
            return "found"

        attempt.step("done", lambda key: seen.append(current()))
        if attempt.number == 1:
            attempt.step("asked", fail, probe=probe)
        attempt.step("asked", fail, probe=probe)
        assert seen[-1] == (attempt, None)

    with pytest.raises(ConnectionError):
        once.run("op", "k", body, retry_safe=True)
    once.run("op", "k", body, retry_safe=True)
    assert [name for _, name in seen] == ["done", None]


# --- nested ---------------------------------------------------------------------------------------


def test_the_innermost_operation_and_step_are_current(once: Once) -> None:
    def inner(attempt: Any) -> str:
        assert current() == (attempt, None)
        assert attempt.step("inner step", lambda key: current()[1]) == "inner step"
        return str(attempt.operation)

    def outer(attempt: Any) -> None:
        def step(key: str) -> str:
            assert current() == (attempt, "outer step")
            value = once.run("inner", "k", inner).value
            assert current() == (attempt, "outer step")
            return value

        assert attempt.step("outer step", step) == "inner"
        assert current() == (attempt, None)
        once.run("inner", "k", inner)  # a replay changes nothing
        once.run("inner", "other", inner)
        assert current() == (attempt, None)

    once.run("outer", "k", outer)


def test_the_outer_step_is_current_again_after_an_inner_one(once: Once) -> None:
    def body(attempt: Any) -> None:
        def outer(key: str) -> None:
            assert attempt.step("b", lambda key: current()[1]) == "b"
            assert current() == (attempt, "a")

        attempt.step("a", outer)

    once.run("op", "k", body)


# --- threads --------------------------------------------------------------------------------------


def test_nothing_is_current_in_a_plain_thread(once: Once) -> None:
    def body(attempt: Any) -> None:
        assert in_thread(current) == NOTHING
        attempt.step("pay", lambda key: None if in_thread(current) == NOTHING else 1 / 0)

    once.run("op", "k", body)


def test_each_thread_of_parallel_has_its_own_current_step(once: Once) -> None:
    barrier = threading.Barrier(8)

    def body(attempt: Any) -> None:
        def look(key: str) -> Any:
            barrier.wait(90)
            attempt_, name = current()
            assert attempt_ is attempt
            return [name, threading.get_ident()]

        with attempt.parallel() as steps:
            futures = {name: steps.step(name, look) for name in map(str, range(8))}
        seen = {name: future.result() for name, future in futures.items()}
        assert {name: value[0] for name, value in seen.items()} == {n: n for n in seen}
        assert len({value[1] for value in seen.values()}) == 8
        assert current() == (attempt, None)

    once.run("op", "k", body)


def test_each_of_many_threads_has_its_own_current_attempt(once: Once) -> None:
    barrier = threading.Barrier(16)

    def body(attempt: Any) -> Any:
        barrier.wait(90)
        assert current() == (attempt, None)
        attempt.step("pay", lambda key: barrier.wait(90) and None)
        assert current() == (attempt, None)
        barrier.wait(90)
        return attempt.key

    with ThreadPoolExecutor(16) as pool:
        runs = [pool.submit(once.run, "op", str(n), body) for n in range(16)]
        assert [run.result().value for run in runs] == [str(n) for n in range(16)]
        left = [pool.submit(current) for _ in range(16)]
        assert {seen.result() for seen in left} == {NOTHING}


def test_an_ended_attempt_is_not_current_in_a_copied_context(once: Once) -> None:
    context: Any = None

    def body(attempt: Any) -> None:
        def step(key: str) -> None:
            nonlocal context
            context = copy_context()
            assert in_thread(lambda: context.run(current)) == (attempt, "pay")

        attempt.step("pay", step)
        assert in_thread(lambda: context.run(current)) == (attempt, None)

    once.run("op", "k", body)
    assert in_thread(lambda: context.run(current)) == NOTHING


# --- generators -----------------------------------------------------------------------------------


def test_a_generator_has_the_current_attempt_of_its_consumer(once: Once) -> None:
    def looks() -> Iterator[Seen]:
        while True:
            yield current()

    left: list[Iterator[Seen]] = []

    def body(attempt: Any) -> None:
        generator = looks()
        assert next(generator) == (attempt, None)
        assert attempt.step("pay", lambda key: next(generator)[1]) == "pay"
        assert next(generator) == (attempt, None)
        left.append(generator)

    once.run("op", "k", body)
    assert next(left[0]) == NOTHING


# --- what a step's key was sent with --------------------------------------------------------------


def test_the_key_of_a_step_admits_one_request(once: Once) -> None:
    def body(attempt: Any) -> None:
        def step(key: str) -> None:
            running = current_step()
            assert isinstance(running, RunningStep)
            with ThreadPoolExecutor(8) as pool:
                digests = [bytes([number]) for number in range(8)]
                won = [
                    d
                    for d, may in zip(digests, pool.map(running.admits, digests), strict=True)
                    if may
                ]
            assert len(won) == 1
            assert running.admits(won[0])
            assert not running.admits(b"another")

        attempt.step("a", step)
        attempt.step("b", step)  # another step may send another request

    once.run("op", "k", body)
