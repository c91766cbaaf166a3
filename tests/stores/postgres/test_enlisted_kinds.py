"""Operations in the caller's own transaction, on a connection of every kind.

Rows and record commit together or not at all (I1), a rollback leaves nothing to wait for (I10), and
an operation that does not succeed leaves the rest of the transaction as it was.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import INSERT, NEVER, Order, Shop, done, locks, rows

from oncekey import InFlight, Mismatch, OperationFailed, Terminal
from oncekey.core.errors import ConfigurationError

MILK = "INSERT INTO orders VALUES ('milk')"
BROKEN = "INSERT INTO nowhere VALUES ('x')"


# --- the ends of a transaction ------------------------------------------------------------------


def test_i1_rows_and_record_commit_together(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            first = await shop.inside("k")
            assert (first.value, first.replayed, first.attempt) == ("done", False, 1)
            assert (rows(), await shop.state("k")) == ([], None)  # nobody else sees it yet
        assert (rows(), await shop.state("k"), locks()) == (["tea"], "succeeded", [])
        async with shop.transaction():
            again = await shop.inside("k", NEVER)
        told = await shop.outside("k", NEVER)
        assert (again.value, again.replayed, again.fence) == ("done", True, first.fence)
        assert (told.value, told.replayed, told.fence) == ("done", True, first.fence)
        assert (shop.ran, rows()) == (1, ["tea"])

    play(scene)


def test_i10_a_rollback_leaves_nothing_and_the_next_retry_runs_at_once(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.begin()
        await shop.inside("k")
        await shop.rollback()
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])
        async with shop.transaction():
            again = await shop.inside("k")
        assert (again.replayed, again.attempt, rows()) == (False, 1, ["tea"])
        assert (await shop.outside("k", NEVER)).value == "done"

    play(scene)


def test_an_error_that_rolls_back_leaves_nothing(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        for error in (ValueError("mine"), Terminal("mine"), KeyboardInterrupt("mine")):
            with pytest.raises(type(error), match="mine"):
                async with shop.transaction():
                    await shop.inside("k", Order(error=error))
            assert (rows(), await shop.state("k"), locks()) == ([], None, [])
        async with shop.transaction():
            assert not (await shop.inside("k")).replayed

    play(scene)


# --- bodies that do not succeed -------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt("mine")])
def test_a_raising_body_undoes_its_own_rows_only(play: Play, error: BaseException) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.execute("INSERT INTO orders VALUES ('before')")
            tx = shop.once.in_transaction(shop.subject)
            with pytest.raises(type(error), match="mine"):
                await shop.run_in(tx, "k", Order(error=error))
            await shop.execute("INSERT INTO orders VALUES ('after')")
            # The key is free, also in this very transaction.
            again = await shop.run_in(tx, "k", Order((MILK,)))
            assert (again.replayed, again.attempt) == (False, 1)
        assert rows() == ["after", "before", "milk"]
        assert await shop.state("k") == "succeeded"

    play(scene)


def test_a_statement_that_fails_does_not_fail_the_transaction(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            with pytest.raises(Exception, match="nowhere"):
                await shop.inside("k", Order((INSERT, BROKEN)))
            await shop.execute(MILK)
        assert (rows(), await shop.state("k")) == (["milk"], None)

    play(scene)


def test_a_terminal_is_kept_and_its_rows_are_not(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            with pytest.raises(Terminal, match="out of tea"):
                await shop.inside("k", Order(error=Terminal("out of tea")))
            with pytest.raises(OperationFailed, match="out of tea"):
                await shop.inside("k", NEVER)
            await shop.execute("INSERT INTO orders VALUES ('refusal noted')")
        assert (rows(), await shop.state("k")) == (["refusal noted"], "failed")
        async with shop.transaction():
            with pytest.raises(OperationFailed, match="out of tea"):
                await shop.inside("k", NEVER)
        with pytest.raises(OperationFailed, match="out of tea"):
            await shop.outside("k", NEVER)

    play(scene)


def test_undo_keeps_the_answer_without_the_rows(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.execute(MILK)
            told = await shop.inside("k", Order(value="sold out", undo=True))
            assert (told.value, told.replayed) == ("sold out", False)
        assert (rows(), await shop.state("k")) == (["milk"], "succeeded")
        assert (await shop.outside("k", NEVER)).value == "sold out"

    play(scene)


def test_what_a_body_writes_after_undo_is_kept_or_undone_with_the_rest(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        three = (INSERT, "INSERT INTO orders VALUES ('coffee')", MILK)

        def blocking(fails: bool) -> Any:
            def body(attempt: Any) -> None:
                for sql in three:
                    attempt.rollback()
                    shop.send(sql)
                if fails:
                    raise ValueError("late")

            return body

        def awaited(fails: bool) -> Any:
            async def body(attempt: Any) -> None:
                for sql in three:
                    await attempt.rollback()
                    await shop.send(sql)
                if fails:
                    raise ValueError("late")

            return body

        body = awaited if shop.is_async else blocking
        async with shop.transaction():
            with pytest.raises(ValueError, match="late"):
                await done(tx.run("order", "k", body(True)))
            await done(tx.run("order", "k", body(False)))
        assert (rows(), await shop.state("k")) == (["milk"], "succeeded")

    play(scene)


# --- keys ---------------------------------------------------------------------------------------


def test_i7_another_request_is_told_so_and_changes_nothing(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.inside("k", request={"cents": 1})
        async with shop.transaction():
            with pytest.raises(Mismatch):
                await shop.inside("k", NEVER, request={"cents": 2})
            assert (await shop.inside("k", NEVER, request={"cents": 1})).replayed
        with pytest.raises(Mismatch):
            await shop.outside("k", NEVER, request={"cents": 2})
        assert rows() == ["tea"]

    play(scene)


def test_two_operations_in_one_transaction_and_one_of_them_twice(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.begin()
        await shop.inside("one")
        await shop.inside("two", Order((MILK,)))
        assert (await shop.inside("one", NEVER)).replayed
        assert (await shop.inside("two", NEVER)).replayed
        await shop.rollback()
        assert (rows(), await shop.state("one"), await shop.state("two")) == ([], None, None)
        async with shop.transaction():
            tx = shop.once.in_transaction(shop.subject)
            await shop.run_in(tx, "one")
            await shop.run_in(tx, "two", Order((MILK,)))
            assert (await shop.run_in(tx, "one", NEVER)).replayed
        assert rows() == ["milk", "tea"]
        assert [await shop.state(key) for key in ("one", "two")] == ["succeeded"] * 2

    play(scene)


def body_with(shop: Shop, tx: Any, inner: Order, error: BaseException | None = None) -> Any:
    """A body that writes milk, runs another operation, and writes milk again."""

    def blocking(attempt: Any) -> Any:
        shop.send(MILK)
        try:
            told = tx.run("order", "inner", shop.body(inner)).value
        except ValueError:
            told = "inner failed"
        shop.send(MILK)
        if error is not None:
            raise error
        return told

    async def awaited(attempt: Any) -> Any:
        await shop.send(MILK)
        try:
            told = (await tx.run("order", "inner", shop.body(inner))).value
        except ValueError:
            told = "inner failed"
        await shop.send(MILK)
        if error is not None:
            raise error
        return told

    return awaited if shop.is_async else blocking


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_an_operation_inside_anothers_body(play: Play, same: bool) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        inside = tx if same else shop.once.in_transaction(shop.subject)
        failing = Order(error=ValueError("inner"))
        async with shop.transaction():  # both succeed
            told = await done(tx.run("outer", "1", body_with(shop, inside, Order())))
            assert told.value == "done"
        assert rows() == ["milk", "milk", "tea"]
        async with shop.transaction():  # the inner one fails, and is undone alone
            told = await done(tx.run("outer", "2", body_with(shop, inside, failing)))
            assert told.value == "done"  # it was finished by the first one
        assert rows() == ["milk"] * 4 + ["tea"]

    play(scene)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_an_inner_operation_fails_alone_and_an_outer_one_takes_it_along(
    play: Play, same: bool
) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        inside = tx if same else shop.once.in_transaction(shop.subject)
        failing = Order(error=ValueError("inner"))
        async with shop.transaction():
            told = await done(tx.run("outer", "1", body_with(shop, inside, failing)))
            assert told.value == "inner failed"
        assert (rows(), await shop.state("inner")) == (["milk", "milk"], None)
        async with shop.transaction():
            body = body_with(shop, inside, Order(), KeyError("outer"))
            with pytest.raises(KeyError, match="outer"):
                await done(tx.run("outer", "2", body))
            # Of the inner one nothing is left either: it runs, in this very transaction.
            assert not (await shop.run_in(inside, "inner", Order())).replayed
        assert (rows(), await shop.state("inner")) == (["milk", "milk", "tea"], "succeeded")

    play(scene)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_i1_the_same_key_inside_its_own_body_is_in_flight(play: Play, same: bool) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        ran = []

        def inside() -> Any:
            return tx if same else shop.once.in_transaction(shop.subject)

        def blocking(attempt: Any) -> Any:
            ran.append(shop.send(INSERT))
            return inside().run("order", "k", blocking).value

        async def awaited(attempt: Any) -> Any:
            ran.append(await shop.send(INSERT))
            return (await inside().run("order", "k", awaited)).value

        async with shop.transaction():
            with pytest.raises(InFlight):
                await done(tx.run("order", "k", awaited if shop.is_async else blocking))
            assert len(ran) == 1
            assert not (await shop.inside("k", Order((MILK,)))).replayed
        assert rows() == ["milk"]

    play(scene)


def test_steps_commit_with_the_record(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        called: list[str] = []

        def call(key: str) -> int:
            called.append(key)
            return len(called)

        def blocking(attempt: Any) -> Any:
            attempt.renew()
            shop.send(INSERT)
            return [attempt.step(name, call) for name in "ab"]

        async def awaited(attempt: Any) -> Any:
            await attempt.renew()
            await shop.send(INSERT)
            return [await attempt.step(name, call) for name in "ab"]

        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            told = await done(tx.run("order", "k", awaited if shop.is_async else blocking))
            assert told.value == [1, 2]
        status = await done(shop.once.get("order", "k"))
        assert [(step.name, step.done) for step in status.steps] == [("a", True), ("b", True)]
        assert (len(set(called)), rows()) == (2, ["tea"])

    play(scene)


def test_a_key_can_be_looked_at_inside(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            assert await done(tx.get("order", "k")) is None
            await shop.run_in(tx, "k")
            status = await done(tx.get("order", "k"))
            assert str(status.state) == "succeeded"
        assert (await done(tx.get("order", "k"))).value == "done"  # also without a transaction

    play(scene)


def test_no_transaction_is_refused(play: Play) -> None:
    """Kinds that begin by themselves are in test_enlisted_refusals.py."""

    async def scene(shop: Shop) -> None:
        if type(shop).__name__ in BEGIN_BY_THEMSELVES:
            await shop.inside("k")
            await shop.commit()
            assert (rows(), await shop.state("k")) == (["tea"], "succeeded")
            return
        with pytest.raises(ConfigurationError, match="in no transaction"):
            await shop.inside("k")
        assert (shop.ran, rows(), await shop.state("k"), locks()) == (0, [], None, [])

    play(scene)


BEGIN_BY_THEMSELVES = {
    "ImplicitShop",
    "SessionShop",
    "ScopedShop",
    "CoreShop",
    "AsyncSessionShop",
    "AsyncSessionPsycopgShop",
    "AsyncCoreShop",
    "AsyncCorePsycopgShop",
}
