"""Decorators and view classes that are around a guarded view: those that commit after it, and those
that do not. `session` stands for a session of SQLAlchemy's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

View = Callable[..., Any]
session: Any = MagicMock()


def transactional(view: View) -> View:
    @functools.wraps(view)
    def committing(*args: Any, **kwargs: Any) -> Any:
        response = view(*args, **kwargs)
        session.commit()
        return response

    return committing


def nameless(view: View) -> View:
    """The same without functools.wraps."""

    def committing_too(*args: Any, **kwargs: Any) -> Any:
        try:
            return view(*args, **kwargs)
        finally:
            session.commit()

    return committing_too


def in_block(view: View) -> View:
    @functools.wraps(view)
    def beginning(*args: Any, **kwargs: Any) -> Any:
        with session.begin():
            return view(*args, **kwargs)

    return beginning


@contextmanager
def unit_of_work() -> Iterator[None]:
    yield
    session.commit()


class Transactional:
    """A decorator that is an object."""

    def __init__(self, view: View) -> None:
        functools.update_wrapper(self, view)
        self._view = view

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        response = self._view(*args, **kwargs)
        session.commit()
        return response


def login_required(view: View) -> View:
    @functools.wraps(view)
    def logged_in(*args: Any, **kwargs: Any) -> Any:
        if session.user is None:
            return "who are you?", 401
        return view(*args, **kwargs)

    return logged_in


def token_required(view: View) -> View:
    """It commits, but before the view."""

    @functools.wraps(view)
    def with_token(*args: Any, **kwargs: Any) -> Any:
        try:
            session.token.used += 1
        except ValueError:
            session.commit()
        return view(*args, **kwargs)

    return with_token


def notifying(view: View) -> View:
    @functools.wraps(view)
    def registered(*args: Any, **kwargs: Any) -> Any:
        response = view(*args, **kwargs)
        session.on_commit(print)
        return response

    return registered


COMMITTING: dict[str, Callable[[View], Any]] = {
    "transactional.<locals>.committing": transactional,
    "nameless.<locals>.committing_too": nameless,
    "in_block.<locals>.beginning": in_block,
    "unit_of_work": unit_of_work(),
    "Transactional.__call__": Transactional,
}
HARMLESS = (login_required, token_required, notifying)
