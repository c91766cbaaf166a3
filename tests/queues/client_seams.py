"""Stands between a broker and its client library: notes every call, and lets chosen ones fail.

Only calls that come from oncekey count; a library also calls itself. Every public method of a class
is watched, so a call that is added to a broker is noted without anybody thinking of it here.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

Label = Callable[[str, tuple[Any, ...]], str]


class Seam:
    """The calls of one client, by labels such as `Channel.basic_ack`.

    labels   which were called, by phase; a test says which phase it is in
    raised   the classes of the errors that calls failed with, the last one last. The errors
             themselves would keep the clients alive that they came from.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.phase = ""
        self.labels: dict[str, set[str]] = defaultdict(set)
        self.raised: list[type[BaseException]] = []
        self._patch = patch
        self._lock = threading.Lock()
        self._errors: dict[str, deque[BaseException]] = defaultdict(deque)

    def fail(self, label: str, *errors: BaseException) -> None:
        """Let the next calls of this label fail, each with the next error."""
        with self._lock:
            self._errors[label].extend(errors)

    @property
    def is_spent(self) -> bool:
        """True if every error was raised."""
        with self._lock:
            return not any(self._errors.values())

    def _met(self, label: str) -> BaseException | None:
        with self._lock:
            self.labels[self.phase].add(label)
            errors = self._errors[label]
            if not errors:
                return None
            error = errors.popleft()
            self.raised.append(type(error))
            return error

    # --- what is watched --------------------------------------------------------------------------

    def watch_class(self, cls: type, label: Label | None = None) -> None:
        """Watch the methods of a class, and its constructor."""
        for name, method in self._methods(cls, label).items():
            self._patch.setattr(cls, name, method)

    def watch_type(self, module: Any, name: str) -> None:
        """Watch a type of C, which cannot be changed: the module is given a subclass of it."""
        cls = getattr(module, name)
        self._patch.setattr(module, name, type(name, (cls,), self._methods(cls, None)))

    def watch_function(self, module: Any, name: str) -> None:
        self._patch.setattr(module, name, self._watched(getattr(module, name), name, None))

    def _methods(self, cls: type, label: Label | None) -> dict[str, Any]:
        found = {}
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            is_method = inspect.isfunction(method) or inspect.ismethoddescriptor(method)
            is_static = isinstance(method, (staticmethod, classmethod))
            if is_method and not is_static and (name == "__init__" or not name.startswith("_")):
                text = f"{cls.__name__}()" if name == "__init__" else f"{cls.__name__}.{name}"
                found[name] = self._watched(method, text, label)
        return found

    def _watched(self, method: Any, text: str, label: Label | None) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith("oncekey."):
                return method(*args, **kwargs)
            name = label(text, args) if label else text
            if inspect.iscoroutinefunction(method):
                return self._awaited(name, method, args, kwargs)
            error = self._met(name)
            if error is not None:
                raise error
            return method(*args, **kwargs)

        return watched

    async def _awaited(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        """Call an async method. A call that is cancelled before it begins has not failed."""
        error = self._met(name)
        if error is not None:
            raise error
        return await method(*args, **kwargs)
