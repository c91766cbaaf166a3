"""A commit is told apart by where it stands: before the call of another function it is over by
then. The code of a function looks different in every version of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from oncekey.engine.body_check import commits_after, mentions_commit

session: Any = None


def before(view: Any) -> Any:
    @functools.wraps(view)
    def run() -> Any:
        try:
            session.check()
        except ValueError:
            session.commit()
        return view()

    return run


def after(view: Any) -> Any:
    @functools.wraps(view)
    def run() -> Any:
        made = view()
        session.commit()
        return made

    return run


def at_the_end(view: Any) -> Any:
    def run() -> Any:
        try:
            return view()
        finally:
            session.commit()

    return run


def around(view: Any) -> Any:
    def run() -> Any:
        with session.begin():
            return view()

    return run


def in_a_nested_function(view: Any) -> Any:
    def run() -> Any:
        def end() -> None:
            session.commit()

        made = view()
        end()
        return made

    return run


def around_a_nested_call(view: Any) -> Any:
    def run() -> Any:
        session.commit()

        def call() -> Any:
            return view()

        return call()

    return run


def never(view: Any) -> Any:
    def run() -> Any:
        made = view()
        session.on_commit(print)
        return made, "commit"

    return run


LATE = (after, at_the_end, around, in_a_nested_function)
HARMLESS = (before, around_a_nested_call, never)


@pytest.mark.parametrize("decorator", [*LATE, *HARMLESS])
def test_a_commit_counts_if_it_can_come_after_the_call(decorator: Callable[[Any], Any]) -> None:
    is_late = decorator in LATE
    assert commits_after(decorator(print), {"view"}) is is_late
    assert commits_after(decorator, {"view"}) is is_late  # by the decorator's own argument


@pytest.mark.parametrize("decorator", [*LATE, *HARMLESS])
def test_every_commit_counts_where_no_call_is_found(decorator: Callable[[Any], Any]) -> None:
    has_commit = decorator is not never
    assert commits_after(decorator(print), {"super"}) is has_commit
    assert mentions_commit(decorator(print)) is has_commit


def test_what_has_no_code_commits_nothing() -> None:
    assert not commits_after(functools.partial(print), ())
    assert not mentions_commit(print)
