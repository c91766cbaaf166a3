"""Steps that are used wrongly: async functions in a sync engine, used names, too many steps."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncekey import (
    ConfigurationError,
    InvalidKey,
    NotReplayable,
    NotStarted,
    Once,
    OperationFailed,
    StepResult,
    StoreUnavailable,
)


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as made:
        yield made


# --- the wrong kind of function -------------------------------------------------------------------


async def asynchronous(key: str) -> str:
    return "never runs"


def generating(key: str) -> Iterator[str]:
    yield "never runs"


@pytest.mark.parametrize("fn", [asynchronous, generating])
def test_a_step_that_returns_a_coroutine_or_generator_is_not_started(once: Once, fn: Any) -> None:
    with pytest.raises(NotStarted, match="has not run"):
        once.run("op", "k", lambda attempt: attempt.step("pay", fn))
    assert once.run("op", "k", lambda attempt: attempt.step("pay", lambda key: "paid")).value


def test_i1_a_step_whose_function_did_something_before_it_gave_a_coroutine_is_not_run_again(
    once: Once,
) -> None:
    paid: list[str] = []

    def pay(key: str) -> Any:
        paid.append(key)
        return asynchronous(key)

    for failure in (ConfigurationError, OperationFailed):
        with pytest.raises(failure):
            once.run("op", "k", lambda attempt: attempt.step("pay", pay), retry_safe=True)
    assert len(paid) == 1


def test_an_async_probe_in_a_sync_engine_is_refused(once: Once) -> None:
    def body(attempt: Any) -> Any:
        def lost(key: str) -> None:
            raise TimeoutError

        try:
            attempt.step("pay", lost, probe=asynchronous, probe_grace="0s")
        except TimeoutError:
            return attempt.step("pay", lost, probe=asynchronous, probe_grace="0s")

    with pytest.raises(NotStarted, match="has not run"):
        once.run("op", "k", body, retry_safe=True)


def test_an_async_recover_in_a_sync_engine_is_refused(once: Once) -> None:
    async def recover(unknown: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="async"):
        once.recover_with("op", recover)
    with pytest.raises(ConfigurationError, match="async"):
        once.operation("op", recover=recover)(lambda attempt, request: None)


# --- results and requests -------------------------------------------------------------------------


def test_a_result_that_no_codec_takes_raises_on_the_first_run(once: Once) -> None:
    made = datetime.now(UTC)
    with pytest.raises(NotReplayable, match="cannot be kept") as caught:
        once.run("op", "k", lambda attempt: attempt.step("pay", lambda key: made))
    assert caught.value.value is made


def test_an_external_id_whose_str_raises_loses_no_result(once: Once) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError

    def pay(key: str) -> Any:
        return StepResult("paid", external_id=Mute())  # type: ignore[arg-type]

    assert once.run("op", "k", lambda attempt: attempt.step("pay", pay)).value == "paid"


def test_a_store_error_raised_by_the_step_itself_is_passed_on(once: Once) -> None:
    def pay(key: str) -> None:
        raise StoreUnavailable("theirs", value="paid")

    with pytest.raises(StoreUnavailable, match=r"^theirs$") as caught:
        once.run("op", "k", lambda attempt: attempt.step("pay", pay))
    assert caught.value.value == "paid"


def test_an_unfinished_step_with_a_request_cannot_be_called_without_one(once: Once) -> None:
    def lost(key: str, request: Any = None) -> None:
        raise TimeoutError

    def body(attempt: Any) -> None:
        try:
            attempt.step("pay", lost, request={"cents": 5})
        except TimeoutError:
            attempt.step("pay", lost)

    with pytest.raises(ConfigurationError, match="sent again as it was"):
        once.run("op", "k", body)


def test_a_step_in_a_transaction_refuses_request_and_probe(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Once(f"sqlite:///{path}") as once:
        connection = sqlite3.connect(path)
        for options in ({"request": {"cents": 5}}, {"probe": lambda key: None}):

            def body(attempt: Any, options: dict[str, Any] = options) -> None:
                attempt.step("pay", lambda *args: "paid", **options)

            with connection, pytest.raises(ConfigurationError, match="in a transaction"):
                once.in_transaction(connection).run("op", "k", body)
        connection.close()


# --- names and limits -----------------------------------------------------------------------------


def test_i1_a_step_called_by_many_threads_runs_once(once: Once) -> None:
    for number in range(40):
        calls: list[str] = []
        meet = threading.Barrier(4)

        def body(attempt: Any, calls: Any = calls, meet: Any = meet) -> None:
            def call(_: int) -> None:
                meet.wait(60)
                try:
                    attempt.step("pay", calls.append)
                except ConfigurationError:
                    pass  # it is running already

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(call, range(4)))

        once.run("op", f"k{number}", body)
        assert len(calls) == 1


def test_i11_parallel_steps_count_towards_the_limit_before_they_end(once: Once) -> None:
    def body(attempt: Any) -> None:
        with attempt.parallel() as steps:
            for number in range(101):
                steps.step(f"s{number}", lambda key: None)

    with pytest.raises(InvalidKey, match="at most 100"):
        once.run("op", "k", body)
    status = once.get("op", "k")
    assert status is not None
    assert len(status.steps) == 100
