"""What a program of two stores yields, and how the commands of a batch go on side by side.

A program is a generator: it yields calls of the two stores and is sent what they return. Each
command of a batch has a generator of its own, and all that wait for the same store go to it in one
batch. Failures come back as values. Must not know what commands do, nor threads or asyncio.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.moved_records import Side

OLD, NEW = Side.OLD, Side.NEW

T = TypeVar("T")


class Call(NamedTuple):
    """Call this method of one of the two stores."""

    side: Side
    method: str
    args: tuple[Any, ...] = ()


class Ask(NamedTuple):
    """One command for one of the two stores."""

    side: Side
    command: Command


# A program is sent what a call returned, or the error that it raised.
Program = Generator[Call, Any, T]
# The generator of one command is sent the reply to each of its commands, or the error.
Answer = Reply | OncekeyError
Rule = Generator[Ask, Any, Answer]


def run_side_by_side(
    rules: Mapping[int, Generator[Ask, Any, Any]], answers: dict[int, Any]
) -> Program[None]:
    """Run the generators, a batch for one store and then a batch for the other."""
    waiting: dict[int, Ask] = {}
    for i, rule in rules.items():
        waiting[i] = next(rule)
    side = OLD
    while waiting:
        sent = {i: ask.command for i, ask in waiting.items() if ask.side is side}
        if sent:
            results = yield Call(side, "apply", (list(sent.values()),))
            if isinstance(results, OncekeyError):
                results = [results] * len(sent)
            for i, result in zip(sent, results, strict=True):
                try:
                    waiting[i] = rules[i].send(result)
                except StopIteration as end:
                    del waiting[i]
                    answers[i] = end.value
        side = side.other


def replies_of(answers: list[Answer]) -> list[Reply]:
    """The replies of a batch. An error that is all commands' is raised, and so is one that says
    that a command is wrong: whoever sent the batch sends its commands one by one then."""
    for answer in answers:
        if isinstance(answer, OncekeyError) and not isinstance(answer, StoreUnavailable):
            raise answer
    failures = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if failures and len(failures) == len(answers):
        raise next((one for one in failures if one.ambiguous), failures[0])
    return answers  # type: ignore[return-value]


def result_of(result: Any) -> Any:
    """The result of a call; if it is an error, that is raised."""
    if isinstance(result, OncekeyError):
        raise result
    return result
