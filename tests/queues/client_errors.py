"""Every exception that a client library can raise, made with a text of its own.

The classes are found by walking the library's modules and subclasses, so a release that adds one
adds a case. This module knows how each library's errors are made, and nothing of brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import string
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError
from pamqp.commands import Basic

ANY = (Exception, OSError, ConnectionResetError, TimeoutError, RuntimeError, KeyError)


def classes_of(*modules: str) -> list[type[Exception]]:
    """The exceptions that these modules define or import from their own library, and all their
    subclasses, by name."""
    found: dict[type[Exception], None] = {}
    for name in modules:
        package = name.partition(".")[0]
        for value in vars(importlib.import_module(name)).values():
            is_error = isinstance(value, type) and issubclass(value, Exception)
            if is_error and value.__module__.startswith(package):
                found.update(dict.fromkeys(_with_subclasses(value)))
    return sorted(found, key=lambda each: f"{each.__module__}.{each.__qualname__}")


def _with_subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
    yield cls
    for each in cls.__subclasses__():
        if each.__module__.partition(".")[0] == cls.__module__.partition(".")[0]:
            yield from _with_subclasses(each)


def made(cls: type[BaseException], text: str) -> BaseException:
    """An error of this class; its text is in it if the class takes one."""
    returned = Basic.Return(0, text, "", text)
    delivered = SimpleNamespace(delivery=returned)
    arguments: Any
    for arguments in (
        *((text,), (0, text), ([],), (text, text, text)),
        *((delivered, returned), ("1 127.0.0.1:1",), (KafkaError(-1, text),), ()),
    ):
        with contextlib.suppress(Exception):
            error = cls(*arguments)
            str(error)
            return error
    fields = [name for _, name, _, _ in string.Formatter().parse(getattr(cls, "fmt", "")) if name]
    with contextlib.suppress(Exception):
        return cls(**dict.fromkeys(fields, text))
    response: Any = {"Error": {"Code": text, "Message": text}, "ResponseMetadata": {}}
    with contextlib.suppress(Exception):
        return cls(response, "ReceiveMessage")
    raise AssertionError(f"nobody knows how to make a {cls}")


def errors_of(*modules: str, is_async: bool) -> list[BaseException]:
    """One error of each class of these modules, and those that anything may raise."""
    classes: list[type[BaseException]] = [*ANY, *classes_of(*modules)]
    if is_async:
        classes.append(asyncio.CancelledError)
    return [made(cls, f"fault {number} of {cls.__name__}") for number, cls in enumerate(classes)]


def is_named(error: BaseException, lines: str) -> bool:
    """True if log lines say which error it was: by its text, or by its class."""
    if isinstance(error, asyncio.CancelledError):
        return "has cancelled it" in lines or "CancelledError" in lines
    if type(error).__name__ in lines:
        return True
    text = ""
    with contextlib.suppress(Exception):
        text = str(error) or repr(error)
    return bool(text) and text in lines
