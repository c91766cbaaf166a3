"""Counts how often an operation had its effect: by a URL, a command, a SQL query, or by ids.

An effect may appear in the count a moment after the response. So a count that is too low for what
was answered is asked for again, for COUNT_PATIENCE_SECONDS, before it is believed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oncekey.verify import json_path
from oncekey.verify.count_query import count_rows, parameters_of
from oncekey.verify.raw_connection import ConnectionFailed, Origin, RawConnection
from oncekey.verify.recorded_exchange import Exchange, WireRequest, WireResponse
from oncekey.verify.target import Caller, CountFailed, Operation, fill

COUNT_TIMEOUT_SECONDS = 10.0
COUNT_PATIENCE_SECONDS = 2.0
COMMAND_OUTPUT_MAX_BYTES = 64 * 1024
_PAUSE_SECONDS = 0.05
_COMMAND_ENV = "ONCEKEY_VERIFY_"

# Where APIs have the id of what they made.
USUAL_ID_PLACES = ("$.id", "$.data.id", "header:Location")
HEADER_PLACE = "header:"


@dataclass(frozen=True, slots=True)
class UrlCounter:
    """Asks a URL for a JSON document, and takes a number, or the length of a list, from it.

    path    where the number or the list is in the document; the document itself if it is empty
    match   only elements of the list that contain this text are counted, if it is given
    """

    origin: Origin
    url_path: str
    path: str = ""
    match: str = ""
    caller: Caller = field(default_factory=lambda: Caller("counter"))
    sees_lost_responses: bool = True

    @property
    def is_total(self) -> bool:
        return "{{" not in self.url_path + self.match

    def describe(self) -> str:
        where = f", {self.path}" if self.path else ""
        which = f", elements with {self.match}" if self.match else ""
        return f"GET {self.origin}{self.url_path}{where}{which}"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return await _enough(lambda: self._ask(operation), operation, exchanges)

    async def _ask(self, operation: Operation) -> int:
        headers = tuple((name, text.encode("utf-8")) for name, text in self.caller.headers)
        request = WireRequest("GET", fill(self.url_path, operation.values), headers)
        response = await self._get(request)
        if response.status != 200:
            raise CountFailed(f"{self.describe()}: the status is {response.status}, not 200")
        try:
            document = json_path.document(response.body)
        except ValueError as error:
            raise CountFailed(f"{self.describe()}: the answer is not JSON") from error
        return self._number(document, fill(self.match, operation.values))

    async def _get(self, request: WireRequest) -> WireResponse:
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
                async with await RawConnection.open(self.origin) as connection:
                    await connection.send(request)
                    return await connection.read_response()
        except ConnectionFailed as error:
            raise CountFailed(f"{self.describe()}: {error}") from error
        except TimeoutError as error:
            raise CountFailed(
                f"{self.describe()}: no answer within {COUNT_TIMEOUT_SECONDS:g} s"
            ) from error

    def _number(self, document: Any, match: str) -> int:
        steps = json_path.parse(self.path)
        values = json_path.find(document, steps)
        if None not in steps:
            if not values:
                found = _not_countable(document, "", counts_numbers=not match)
                raise CountFailed(f"{self.describe()}: nothing is at {self.path}; {found}")
            (value,) = values
            if isinstance(value, int) and not isinstance(value, bool) and not match:
                return value
            if not isinstance(value, list):
                found = _not_countable(value, self.path, counts_numbers=not match)
                raise CountFailed(f"{self.describe()}: {found}")
            values = value
        return sum(match in json.dumps(value, ensure_ascii=False) for value in values)


@dataclass(frozen=True, slots=True)
class CommandCounter:
    """Runs a program that prints a number. No shell is in between.

    The operation's values are in its environment: ONCEKEY_VERIFY_UNIQUE, _NUMBER and _KEY. Whether
    it uses them is not known, so its number is compared with the one before the operation.
    """

    arguments: tuple[str, ...]
    is_total: bool = True
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return f"the command {' '.join(self.arguments)}"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return await _enough(lambda: self._ask(operation), operation, exchanges)

    async def _ask(self, operation: Operation) -> int:
        values = {_COMMAND_ENV + name.upper(): text for name, text in operation.values.items()}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **values},
                limit=COMMAND_OUTPUT_MAX_BYTES,
            )
        except OSError as error:
            raise CountFailed(f"{self.describe()}: {error.strerror}") from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
                output = await process.stdout.read(COMMAND_OUTPUT_MAX_BYTES)
                code = await process.wait()
        except TimeoutError as error:
            raise CountFailed(
                f"{self.describe()}: it did not end within {COUNT_TIMEOUT_SECONDS:g} s"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode("utf-8", "replace").strip()
        if code != 0 or not text.isascii() or not text.isdigit():
            raise CountFailed(
                f"{self.describe()}: it printed {text[:80]!r} and ended with {code}; "
                f"expected are a whole number and 0"
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class SqlCounter:
    """Asks a database by a query that gives one number; :unique, :number and :key are bound."""

    database: str
    shown_database: str
    query: str
    sees_lost_responses: bool = True

    @property
    def is_total(self) -> bool:
        return not parameters_of(self.query)

    def describe(self) -> str:
        return f"{' '.join(self.query.split())} on {self.shown_database}"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return await _enough(lambda: self._ask(operation), operation, exchanges)

    async def _ask(self, operation: Operation) -> int:
        try:
            return await asyncio.to_thread(
                count_rows, self.database, self.query, operation.values, COUNT_TIMEOUT_SECONDS
            )
        except CountFailed as error:
            raise CountFailed(f"{self.describe()}: {error}") from error


@dataclass(frozen=True, slots=True)
class ResponseIdCounter:
    """Counts different ids in the responses of an operation.

    It knows nothing of an effect whose response never came.

    places   paths into the JSON body, or header:Name; the first one that a response has is taken
    """

    places: tuple[str, ...] = USUAL_ID_PLACES
    is_total: bool = False
    sees_lost_responses: bool = False

    def describe(self) -> str:
        return f"different ids in the responses ({' or '.join(self.places)})"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        mine = operation.request()
        ids = set()
        for exchange in exchanges:
            # Another caller, or another path, may rightly have an operation of its own.
            sent = exchange.request
            if (sent.path, sent.secrets) != (mine.path, mine.secrets) or not exchange.is_success:
                continue
            assert exchange.response is not None
            found = self.id_in(exchange.response)
            if found is None:
                raise CountFailed(
                    f"a response with the status {exchange.status} has no id at "
                    f"{' or '.join(self.places)}"
                )
            ids.add(found)
        return len(ids)

    def id_in(self, response: WireResponse) -> str | None:
        """Return the id that a response tells, if it does."""
        return next((found for _, found in self._ids(response)), None)

    def narrowed(self, one: WireResponse, other: WireResponse) -> ResponseIdCounter | None:
        """Return a counter for the first place where the responses of two operations have two ids.

        None without one: an id that all operations have, such as that of an account, counts none.
        """
        ids = dict(self._ids(other))
        places = (place for place, found in self._ids(one) if ids.get(place, found) != found)
        place = next(places, None)
        return None if place is None else replace(self, places=(place,))

    def _ids(self, response: WireResponse) -> Iterator[tuple[str, str]]:
        try:
            document = json_path.document(response.body)
        except ValueError:
            document = None
        for place in self.places:
            if place.startswith(HEADER_PLACE):
                line = response.header(place.removeprefix(HEADER_PLACE))
                values: list[Any] = [] if line is None else [line]
            else:
                values = json_path.find(document, json_path.parse(place))
            if len(values) == 1 and isinstance(values[0], str | int):
                yield place, str(values[0])


def _not_countable(value: Any, path: str, *, counts_numbers: bool) -> str:
    """Say that a value is no count, and what in it is one."""
    countable = (int, list) if counts_numbers else (list,)
    places = [
        f"{path or '$'}.{name}"
        for name, inner in (value.items() if isinstance(value, dict) else ())
        if isinstance(inner, countable) and not isinstance(inner, bool)
    ]
    kinds = "list" if not counts_numbers else "list or whole number"
    text = f"{path or 'the document'} is no {kinds}"
    if not places:
        return text
    return f"{text}, but has one: --count-path '{' or '.join(places)}', or path in [effects]"


async def _enough(
    ask: Callable[[], Awaitable[int]], operation: Operation, exchanges: Sequence[Exchange]
) -> int:
    """Return a count; ask again while it lacks an effect that a response has told of."""
    least = operation.before + any(exchange.is_success for exchange in exchanges)
    ends_at = time.monotonic() + COUNT_PATIENCE_SECONDS
    while True:
        count = await ask()
        if count >= least or time.monotonic() >= ends_at:
            return count
        await asyncio.sleep(_PAUSE_SECONDS)
