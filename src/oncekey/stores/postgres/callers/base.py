"""Carrying out actions on a caller's connection: what every kind of connection shares.

Owns driving the generators of enlisting.py, the texts of our queries as drivers want them, and the
names of savepoints. Which driver it is, connections.py and frameworks.py know.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.caller_transaction import (
    NO_SAVEPOINT,
    Action,
    AnotherStore,
    Part,
    Participant,
    Save,
    Saving,
    Standing,
    transaction_over,
)
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import Layout, literal, make_queries
from oncekey.stores.postgres.rows import Row

T = TypeVar("T")


class Blocking(ABC):
    """The verbs; how actions are carried out is up to the kind of connection."""

    leaves_savepoints = False

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        self.connection = connection  # the real one, where the caller's is only its name
        self._connection = connection
        self._texts = texts_of(program.layout)
        self._program = program
        self._identify = identify
        self._participant = Participant(program, leaves=self.leaves_savepoints)

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        known = self._program.identity
        try:
            return self._run(self._participant.apply(commands, self._standing()))
        except AnotherStore:
            self._identify()
            if self._program.identity == known:
                raise
        return self._run(self._participant.apply(commands, self._standing()))

    def set_savepoint(self) -> None:
        self._run(self._participant.set_savepoint())

    def rollback_to_savepoint(self) -> None:
        self._run(self._participant.rollback_to_savepoint())

    def release_savepoint(self) -> None:
        try:
            self._flush()
            standing = self._standing()
        except BaseException:
            self._run(self._participant.give_up())
            raise
        self._run(self._participant.release_savepoint(standing))

    def _run(self, steps: Part[T]) -> T:
        try:
            actions = next(steps)
            while True:
                try:
                    rows = self._perform(actions)
                except BaseException as error:
                    actions = steps.throw(error)
                else:
                    actions = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            meaning = meaning_of(error, self._program)
            if meaning is None:
                raise
            raise meaning from error

    def _flush(self) -> None:
        """Write what the body has left unwritten."""
        return

    @abstractmethod
    def _standing(self) -> Standing: ...

    @abstractmethod
    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]: ...


class Async(ABC):
    """The same verbs, awaited."""

    leaves_savepoints = False

    def __init__(
        self, connection: Any, program: Program, identify: Callable[[], Awaitable[None]]
    ) -> None:
        self.connection = connection  # the real one, where the caller's is only its name
        self._connection = connection
        self._texts = texts_of(program.layout)
        self._program = program
        self._identify = identify
        self._participant = Participant(program, leaves=self.leaves_savepoints)

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        known = self._program.identity
        try:
            return await self._run(self._participant.apply(commands, await self._standing()))
        except AnotherStore:
            await self._identify()
            if self._program.identity == known:
                raise
        return await self._run(self._participant.apply(commands, await self._standing()))

    async def set_savepoint(self) -> None:
        await self._run(self._participant.set_savepoint())

    async def rollback_to_savepoint(self) -> None:
        await self._run(self._participant.rollback_to_savepoint())

    async def release_savepoint(self) -> None:
        try:
            await self._flush()
            standing = await self._standing()
        except BaseException:
            await self._run(self._participant.give_up())
            raise
        await self._run(self._participant.release_savepoint(standing))

    async def _run(self, steps: Part[T]) -> T:
        try:
            actions = next(steps)
            while True:
                try:
                    rows = await self._perform(actions)
                except GeneratorExit:
                    raise  # the loop is being torn down: nothing can be awaited any more
                except BaseException as error:
                    actions = steps.throw(error)
                else:
                    actions = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            meaning = meaning_of(error, self._program)
            if meaning is None:
                raise
            raise meaning from error

    async def _flush(self) -> None:
        """Write what the body has left unwritten."""
        return

    @abstractmethod
    async def _standing(self) -> Standing: ...

    @abstractmethod
    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]: ...


def meaning_of(error: BaseException, program: Program) -> Exception | None:
    """The error to raise for a driver's; None where that one is to be raised as it is."""
    if isinstance(error, ConfigurationError):
        return None
    if errors.state_of(error) in errors.NOT_THERE:
        return ConfigurationError(
            f"the connection leads to a database without oncekey's schema "
            f"{program.layout.schema!r}; the store is in {program.address}. Give in_transaction a "
            f"connection to that database, or open the store where the connection leads and run "
            f"`oncekey migrate` there ({errors.text(error)})"
        )
    if errors.state_of(error) in (errors.CLAIM_GONE, NO_SAVEPOINT):
        return transaction_over()
    return errors.enlisted(error)


# --- texts ------------------------------------------------------------------------------------

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class Text(NamedTuple):
    """One query as drivers want it."""

    dollars: str
    kinds: tuple[str, ...]
    percents: str
    order: tuple[int, ...]  # which parameter each %s is
    pieces: tuple[str, ...]  # what is between the parameters

    def written(self, params: Sequence[Any]) -> list[Any]:
        """The parameters as drivers take them."""
        return [literal(k, v) for k, v in zip(self.kinds, params, strict=True)]

    def positional(self, params: Sequence[Any]) -> tuple[Any, ...]:
        """The same, one for each %s."""
        written = self.written(params)
        return tuple(written[number] for number in self.order)

    def inline(self, params: Sequence[Any]) -> str:
        """The query with its parameters in it: numbers and digests only, nothing a caller chose,
        for all of it may end up in a server's log."""
        values = [_LITERALS[k](v) for k, v in zip(self.kinds, params, strict=True)]
        parts = [self.pieces[0]]
        for number, piece in zip(self.order, self.pieces[1:], strict=True):
            parts += (values[number], piece)
        return "".join(parts)


@cache
def texts_of(layout: Layout) -> dict[str, Text]:
    """Every query by name; made once, because transactions are many."""
    made = {}
    for name, query in make_queries(layout).items():
        order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query.sql))
        percents = _PLACEHOLDER.sub("%s", query.sql.replace("%", "%%"))
        pieces = tuple(_PLACEHOLDER.split(query.sql)[::2])
        made[name] = Text(query.sql, query.kinds, percents, order, pieces)
    return made


def _literal(quote: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "NULL" if value is None else quote(value)


_LITERALS: Final[dict[str, Callable[[Any], str]]] = {
    "bigint": _literal(int.__repr__),
    "integer": _literal(int.__repr__),
    "boolean": _literal(lambda value: "true" if value else "false"),
    "uuid": _literal(lambda value: f"'{value.hex()}'"),
    # No backslash: what that means depends on the session's settings.
    "bytea": _literal(lambda value: f"decode('{value.hex()}', 'hex')"),
}


# --- savepoints in SQL --------------------------------------------------------------------------

_numbers = itertools.count(1)
_free_names: list[str] = []


def _take_name() -> str:
    """A name that no other run has: were a run to go back to a savepoint of a run inside it, by
    the same name, half of its rows would stay. Used again and again, since drivers and servers
    remember statements."""
    try:
        return _free_names.pop()
    except IndexError:
        return f"oncekey_{next(_numbers)}"


def savepoint_text(saving: Saving, *, is_over: bool) -> str | None:
    """What to send, if anything."""
    how, mark = saving
    if how is Save.SET:
        mark.made = _take_name()
        return f"SAVEPOINT {mark.made}"
    name, mark.made = mark.made, None
    if name is None:
        return None
    _free_names.append(name)
    if how is Save.LEAVE or is_over:
        return None
    if how is Save.DROP:
        return f"RELEASE SAVEPOINT {name}"
    return f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
