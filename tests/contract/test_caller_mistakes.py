"""Common mistakes of callers are reported, and never lead to a duplicate or a lost key."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey import (
    AsyncOnce,
    ConfigurationError,
    InFlight,
    NotStarted,
    Once,
    OutcomeUnknown,
    Policy,
    StoreUnavailable,
)
from oncekey.core.commands import Claim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def once(path: Path) -> Iterator[Once]:
    with Once(f"sqlite:///{path}") as opened:
        yield opened


@pytest.fixture
def db(path: Path, once: Once) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("CREATE TABLE orders (item TEXT)")
    connection.commit()
    yield connection
    connection.close()


def orders(db: sqlite3.Connection) -> list[str]:
    return [item for (item,) in db.execute("SELECT item FROM orders ORDER BY item")]


def test_i1_a_second_task_on_one_connection_is_refused_and_undoes_nothing(
    path: Path, db: sqlite3.Connection
) -> None:
    async def main() -> Any:
        async with AsyncOnce(f"sqlite:///{path}") as once:
            tx = once.in_transaction(db)
            inside, refused = asyncio.Event(), asyncio.Event()

            async def first(attempt: Any) -> str:
                db.execute("INSERT INTO orders VALUES ('first')")
                inside.set()
                await refused.wait()
                return "first"

            async def second() -> None:
                await inside.wait()
                try:
                    await tx.run("op", "b", lambda attempt: 1 / 0)  # type: ignore[arg-type,return-value]
                finally:
                    refused.set()

            return await asyncio.gather(tx.run("op", "a", first), second(), return_exceptions=True)

    done, refusal = asyncio.run(main())
    db.commit()
    assert done.value == "first"
    assert orders(db) == ["first"]
    assert isinstance(refusal, ConfigurationError)
    assert "another operation is under way" in str(refusal)


def test_i1_a_second_thread_on_one_connection_is_refused(
    once: Once, db: sqlite3.Connection
) -> None:
    refused: list[BaseException] = []

    def other() -> None:
        try:
            once.in_transaction(db).run("op", "b", lambda attempt: 1)
        except ConfigurationError as error:
            refused.append(error)

    def body(attempt: Any) -> str:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return "kept"

    with db:
        assert once.in_transaction(db).run("op", "a", body).value == "kept"
    assert len(refused) == 1


def test_an_operation_may_run_inside_the_body_of_another(
    once: Once, db: sqlite3.Connection
) -> None:
    with db:
        tx = once.in_transaction(db)
        outer = tx.run("op", "a", lambda a: tx.run("op", "b", lambda b: 2).value + 1)
        again = tx.run("op", "c", lambda a: 4)
    assert (outer.value, again.value) == (3, 4)


def test_i1_a_body_that_commits_the_transaction_is_never_run_again(
    once: Once, db: sqlite3.Connection
) -> None:
    def committing(attempt: Any) -> int:
        with db:  # commits the whole transaction, with the claim
            db.execute("INSERT INTO orders VALUES ('half')")
        return 1

    with pytest.raises(ConfigurationError, match="committed it"), db:
        once.in_transaction(db).run("op", "k", committing, lease="10ms")
    db.rollback()
    with pytest.raises(OutcomeUnknown):  # when the short lease of the committed claim has ended
        once.run("op", "k", committing, retry_safe=True, wait="10s")
    assert orders(db) == ["half"]


@pytest.mark.parametrize("steps", [False, True])
def test_a_finish_that_fails_in_a_transaction_fails_at_once(
    once: Once, db: sqlite3.Connection, steps: bool
) -> None:
    """I11: a retry would hold the write lock, and so block all other writers, for ever."""

    def body(attempt: Any) -> int:
        db.execute("PRAGMA query_only = on")
        return attempt.step("s", lambda key: 1) if steps else 1

    with pytest.raises(StoreUnavailable), db:
        once.in_transaction(db).run("op", "k", body)
    db.execute("PRAGMA query_only = off")
    with db:
        assert once.in_transaction(db).run("op", "k", lambda attempt: 2).value == 2


def test_a_duplicate_inside_a_transaction_does_not_wait_for_the_owner(
    once: Once, db: sqlite3.Connection
) -> None:
    """The owner could not write while the duplicate's transaction holds the write lock."""

    def body(attempt: Any) -> str:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(InFlight):
            once.in_transaction(db).run("op", "k", lambda other: "twice", wait="1h")
        db.rollback()
        return "once"

    assert once.run("op", "k", body).value == "once"


def test_a_call_with_missing_arguments_leaves_the_key_free(once: Once) -> None:
    @once.guard("refund", key=lambda order, *rest, **more: order)
    def refund(order: str, cents: int) -> int:
        return cents

    with pytest.raises(TypeError, match="cents"):
        refund("order-1")  # type: ignore[call-arg]
    assert refund("order-1", 200) == 200


def test_a_type_error_raised_by_the_function_is_its_failure(once: Once) -> None:
    @once.guard("refund", key=lambda order: order)
    def refund(order: str) -> int:
        return len(5)  # type: ignore[arg-type]

    with pytest.raises(TypeError) as caught:
        refund("order-1")
    assert not isinstance(caught.value, NotStarted)
    status = once.get("refund", "order-1")
    assert status is not None
    assert status.state == "failed"


def test_a_coroutine_or_generator_is_not_stored_as_a_result(once: Once) -> None:
    async def later(attempt: Any) -> int:
        return 1

    def many(attempt: Any) -> Iterator[int]:
        yield 1

    for body in (later, many):
        with pytest.raises(ConfigurationError, match="not run"):
            once.run("op", "k", body)
    assert once.run("op", "k", lambda attempt: 3).value == 3
    with pytest.raises(ConfigurationError, match="generator"):
        once.guard("op", key=str)(many)


def test_a_deleted_or_replaced_file_is_not_written_to(path: Path, once: Once) -> None:
    """I1: in a new file of the same name, a finished key would run again."""
    once.run("op", "k", lambda attempt: 1)
    for file in path.parent.glob("shop.db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        once.run("op", "other", lambda attempt: 1)
    path.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        once.run("op", "other", lambda attempt: 1)


def test_closing_the_engine_inside_a_body_is_an_error_with_the_bodys_value(path: Path) -> None:
    once = Once(f"sqlite:///{path}")

    def body(attempt: Any) -> str:
        once.close()
        return "ran"

    with pytest.raises(StoreUnavailable, match="closed") as caught:
        once.run("op", "k", body, lease="1h")
    assert caught.value.value == "ran"


def test_i14_ctrl_c_between_the_claim_and_the_body_releases_the_key(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = once._runner._apply

    def interrupted(commands: Any) -> Any:
        replies = apply(commands)
        if isinstance(commands[0], Claim):
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(once._runner._coalescer, "_apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        once.run("op", "k", lambda attempt: 1)
    monkeypatch.undo()
    assert once.run("op", "k", lambda attempt: 2).value == 2


def test_a_policy_may_require_transactions_for_every_operation(path: Path) -> None:
    with Once(f"sqlite:///{path}", policy=Policy(require="transactional")) as once:
        with pytest.raises(ConfigurationError, match="requires transactional"):
            once.run("op", "k", lambda attempt: 1)
        db = sqlite3.connect(path)
        with db:
            assert once.in_transaction(db).run("op", "k", lambda attempt: 2).value == 2
        db.close()
        status = once.get("op", "k")  # `get` needs no transaction
        assert status is not None
        assert status.value == 2
    with pytest.raises(ConfigurationError, match="requires transactional"):
        Once("memory://", policy=Policy(require="transactional"))
