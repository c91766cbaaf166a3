"""No reply of a store escapes as a bare Python error, whichever way the command went.

What a store's code raises instead of a reply becomes StoreUnavailable: ambiguous if a command that
writes may have been applied. Errors of oncekey's own, of the caller's code and of the driver of a
caller's transaction stay what they are.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.commands import Claim, Command, Finish, Look, Reply, Resolve
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

SHORT = Policy(store_timeout="1s")


class Unreadable(MemoryStore):
    """A store that applies commands of the kinds in `kinds` and cannot read their replies. What the
    operators' calls raise is `fault` too."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: tuple[type, ...] = ()
        self.fault: BaseException | None = None
        self.times = 1_000
        self.silent = False

    def fail(self, fault: BaseException, *kinds: type, times: int = 1_000) -> None:
        self.fault, self.kinds, self.times = fault, kinds, times

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = super().apply(commands)
        if self.silent:
            return []
        if isinstance(commands[0], self.kinds) and self.times:
            self.times -= 1
            self._raise()
        return replies

    def _raise(self) -> None:
        if self.fault is not None:
            raise type(self.fault)(*self.fault.args)  # another one, which has no traceback yet

    def _raise_for_operator(self) -> None:
        if not self.kinds:
            self._raise()

    def search(self, *arguments: Any) -> Any:
        self._raise_for_operator()
        return super().search(*arguments)

    def measure(self) -> Any:
        self._raise_for_operator()
        return super().measure()

    def history(self, *arguments: Any) -> Any:
        self._raise_for_operator()
        return super().history(*arguments)

    def sweep(self, *arguments: Any) -> Any:
        self._raise_for_operator()
        return super().sweep(*arguments)

    def unfinished(self, *arguments: Any) -> Any:
        self._raise_for_operator()
        return super().unfinished(*arguments)


class Engine:
    """An engine of either kind over a store that never waits; calls are made by name."""

    def __init__(self, is_async: bool) -> None:
        self.store = Unreadable()
        self.is_async = is_async
        inner: Any = AsyncMemoryStore(self.store) if is_async else self.store
        self.once: Any = (AsyncOnce if is_async else Once)(inner, policy=SHORT)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        made = getattr(self.once, name)(*arguments, **options)
        return asyncio.run(_awaited(made)) if self.is_async else made

    def run(self, key: str, body: Callable[[], Any], **options: Any) -> Any:
        async def on_loop(attempt: Any) -> Any:
            return body()

        function = on_loop if self.is_async else lambda attempt: body()
        return self.call("run", "op", key, function, **options)

    def close(self) -> None:
        """Leave nothing that goes on writing to the log while other tests read theirs."""
        self.store.fault, self.store.kinds, self.store.silent = None, (), False
        self.call("close")


async def _awaited(call: Any) -> Any:
    return await call


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine(request.param)
    yield engine
    engine.close()


FAULT = TypeError("row_of(None)")


def unavailable(call: Callable[[], Any], *, ambiguous: bool) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable, match="TypeError: row_of") as raised:
        call()
    assert raised.value.ambiguous is ambiguous
    return raised.value


# --- a store that never waits ---------------------------------------------------------------------


def test_i9_claim_whose_reply_is_unreadable_once_is_sent_again_and_runs_once(
    engine: Engine,
) -> None:
    engine.store.fail(FAULT, Claim, times=1)
    ran: list[int] = []
    engine.run("k", lambda: ran.append(1))
    assert ran == [1]
    assert engine.run("k", lambda: ran.append(2)).replayed


def test_claim_whose_replies_are_unreadable_runs_nothing_and_leaves_the_key_free(
    engine: Engine,
) -> None:
    engine.store.fail(FAULT, Claim)
    unavailable(lambda: engine.run("k", lambda: pytest.fail("it ran")), ambiguous=True)
    engine.store.fail(FAULT)
    assert engine.run("k", lambda: 7).value == 7


def test_i4_finish_whose_reply_is_unreadable_once_is_stored(engine: Engine) -> None:
    engine.store.fail(FAULT, Finish, times=1)
    assert engine.run("k", lambda: 7).value == 7
    assert engine.run("k", lambda: pytest.fail("it ran again")).value == 7


def test_finish_whose_replies_are_unreadable_gives_the_value_on_the_error(engine: Engine) -> None:
    engine.store.fail(FAULT, Finish)
    assert unavailable(lambda: engine.run("k", lambda: 7), ambiguous=True).value == 7


def test_look_whose_reply_is_unreadable_is_not_ambiguous(engine: Engine) -> None:
    engine.store.fail(FAULT, Look)
    unavailable(lambda: engine.call("get", "op", "k"), ambiguous=False)


def test_store_that_gives_no_reply_is_unavailable(engine: Engine) -> None:
    engine.store.silent = True
    with pytest.raises(StoreUnavailable, match="IndexError"):
        engine.run("k", lambda: pytest.fail("it ran"))


def test_error_of_oncekeys_own_stays_what_it_is(engine: Engine) -> None:
    engine.store.fail(ConfigurationError("run `oncekey migrate`"), Claim, Look)
    with pytest.raises(ConfigurationError, match="oncekey migrate"):
        engine.run("k", lambda: 1)
    with pytest.raises(ConfigurationError, match="oncekey migrate"):
        engine.call("get", "op", "k")


def test_interruption_in_the_store_stays_what_it_is() -> None:
    engine = Engine(is_async=False)
    engine.store.fail(KeyboardInterrupt("ctrl-c"), Claim, times=1)
    with pytest.raises(KeyboardInterrupt, match="ctrl-c"):
        engine.run("k", lambda: 1)
    engine.close()


def test_error_of_the_body_stays_what_it_is(engine: Engine) -> None:
    with pytest.raises(TypeError, match="mine"):
        engine.run("k", lambda: _raise(TypeError("mine")))


def _raise(error: Exception) -> None:
    raise error


# --- operators' calls -----------------------------------------------------------------------------


OPERATORS: dict[str, tuple[tuple[Any, ...], bool]] = {
    "list": ((), False),
    "find": (("ab",), False),
    "stats": ((), False),
    "sweep": ((), True),
    "complete": ((), False),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_call_of_an_operator_gets_no_bare_error(engine: Engine, name: str) -> None:
    arguments, ambiguous = OPERATORS[name]
    if name == "complete":  # which asks the store only where there is something to complete
        engine.once.operation("job", retry_safe=True)(_job_for(engine))
    engine.store.fail(FAULT)
    error = unavailable(lambda: engine.call(name, *arguments), ambiguous=ambiguous)
    assert isinstance(error.__cause__, TypeError)


def _job_for(engine: Engine) -> Any:
    async def on_loop(attempt: Any, request: Any) -> None:
        return None

    return on_loop if engine.is_async else lambda attempt, request: None


@pytest.mark.parametrize("reply", [None, 7, ()])
def test_page_that_cannot_be_read_is_no_bare_error(
    engine: Engine, reply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.store, "search", lambda *arguments: reply)
    with pytest.raises(StoreUnavailable, match="the store raised AttributeError"):
        engine.call("list")


def test_decision_whose_reply_is_unreadable_is_ambiguous(engine: Engine) -> None:
    """So is one that was taken, where what the key is then cannot be read."""
    with Once(engine.store, policy=SHORT) as other, pytest.raises(KeyboardInterrupt):
        other.run("op", "k", _interrupted)
    shown = engine.call("get", "op", "k")
    assert shown.state == "unknown"
    words = {"by": "me", "why": "looked"}
    engine.store.fail(FAULT, Look)
    unavailable(lambda: engine.call("resolve", shown, free=True, **words), ambiguous=False)
    engine.store.fail(FAULT, Resolve)
    unavailable(lambda: engine.call("resolve", shown, free=True, **words), ambiguous=True)


def _interrupted(attempt: Any) -> None:
    raise KeyboardInterrupt


def test_mistake_in_the_arguments_of_a_call_is_not_the_stores(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        engine.call("list", limit="many")
    with pytest.raises(ConfigurationError, match="limit='many' must be a number of records"):
        engine.call("sweep", "many")


# --- in a caller's transaction --------------------------------------------------------------------


class Joined:
    """A caller's transaction that raises after it has applied a command of one kind."""

    def __init__(self, inner: Any, fault: Exception, kind: type) -> None:
        self._inner, self._fault, self._kind = inner, fault, kind

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies: list[Reply] = self._inner.apply(commands)
        if type(commands[0]) is self._kind:
            raise self._fault
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class AsyncJoined(Joined):
    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:  # type: ignore[override]
        replies: list[Reply] = await self._inner.apply(commands)
        if type(commands[0]) is self._kind:
            raise self._fault
        return replies


class Shop:
    """An engine over an SQLite file, and the app's own connection to it."""

    def __init__(self, path: Path, is_async: bool) -> None:
        self.is_async = is_async
        self.url, self.path = f"sqlite:///{path}", path
        with Once(self.url) as once:
            once.run("setup", "k", lambda attempt: 1)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE orders (item TEXT)")

    def order(self, fault: Exception, kind: type, *, commit: bool = False) -> None:
        """Place an order in a transaction; the store fails. Raises what the app gets; with
        `commit` the app commits all the same."""
        connection = sqlite3.connect(self.path, check_same_thread=False)
        try:
            if self.is_async:
                asyncio.run(self._order_async(connection, fault, kind))
            else:
                self._order(connection, fault, kind)
        finally:
            connection.commit() if commit else connection.rollback()
            connection.close()

    def _order(self, connection: sqlite3.Connection, fault: Exception, kind: type) -> None:
        with Once(self.url, policy=SHORT) as once:
            store: Any = once._store
            join = store.join
            store.join = lambda joined: Joined(join(joined), fault, kind)
            once.in_transaction(connection).run("order", "k", lambda attempt: insert(connection))

    async def _order_async(
        self, connection: sqlite3.Connection, fault: Exception, kind: type
    ) -> None:
        async def place(attempt: Any) -> None:
            insert(connection)

        async with AsyncOnce(self.url, policy=SHORT) as once:
            store: Any = once._store
            join = store.join
            store.join = lambda joined: AsyncJoined(join(joined), fault, kind)
            await once.in_transaction(connection).run("order", "k", place)

    def rows(self) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT item FROM orders").fetchall()


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders VALUES ('tea')")


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db", request.param)


FAULTS = [FAULT, KeyError("body"), ValueError("no JSON"), IndexError("tuple index")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_unreadable_claim_in_a_transaction_runs_nothing_and_holds_no_key(
    shop: Shop, fault: Exception
) -> None:
    with pytest.raises(StoreUnavailable, match=type(fault).__name__) as raised:
        shop.order(fault, Claim, commit=True)
    assert raised.value.ambiguous
    assert shop.rows() == []
    with Once(shop.url) as once:
        assert once.get("order", "k") is None


def test_unreadable_finish_in_a_transaction_is_no_bare_error(shop: Shop) -> None:
    with pytest.raises(StoreUnavailable, match="TypeError: row_of") as raised:
        shop.order(FAULT, Finish)
    assert raised.value.ambiguous
    assert shop.rows() == []


DRIVERS_ERRORS = [
    sqlite3.IntegrityError("UNIQUE constraint failed: orders.item"),
    sqlite3.OperationalError("could not serialize access"),
]


@pytest.mark.parametrize("kind", [Claim, Finish])
@pytest.mark.parametrize("error", DRIVERS_ERRORS, ids=lambda error: type(error).__name__)
def test_error_of_the_driver_reaches_the_app_that_repeats_its_transaction(
    shop: Shop, error: sqlite3.Error, kind: type
) -> None:
    with pytest.raises(type(error)) as raised:
        shop.order(error, kind)
    assert raised.value is error
