"""Codecs of types: a dataclass, a pydantic model, or whatever a function's annotation says.

`return_codec` is asked when a function is decorated, so that a result which cannot be stored is
refused before anything has run. Of what JSON cannot represent it knows decimals, dates and times,
UUIDs, bytes, enums, sets, tuples, NamedTuples and dataclasses, inside of one another; a type in
which there is a pydantic model is pydantic's. Knows no store and no HTTP.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from oncekey.core.codec import JSON, NAME_MAX_CHARS, Codec
from oncekey.core.errors import ConfigurationError

_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class _Text(NamedTuple):
    """How a value that JSON does not have is written as one that it has, and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


_WRITTEN: Final = {
    decimal.Decimal: _Text(str, decimal.Decimal),
    uuid.UUID: _Text(str, uuid.UUID),
    datetime.datetime: _Text(datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: _Text(datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: _Text(datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: _Text(lambda one: one // _MICROSECOND, lambda one: one * _MICROSECOND),
    bytes: _Text(lambda one: base64.b64encode(one).decode(), base64.b64decode),
}
_PLAIN: Final = frozenset((str, int, float, bool, type(None), dict, list, Any, object))
_LISTS: Final = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_DICTS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SETS: Final = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_NOTHING: Final = (typing.NoReturn, typing.Never)
_UNIONS: Final = (typing.Union, types.UnionType)


class TypedCodec:
    """Values of the type that an annotation says. Answers that were stored as plain JSON, before
    there was an annotation, are still read."""

    name = "typed"
    older = (JSON,)

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def dump(self, value: Any, /) -> bytes:
        return JSON.dump(_written(self._hint, value))

    def load(self, data: bytes, /) -> Any:
        return _read(self._hint, JSON.load(data))


class DataclassCodec(TypedCodec):
    """A dataclass as JSON of its fields."""

    name = "dataclass"

    def __init__(self, cls: type[Any]) -> None:
        if not dataclasses.is_dataclass(cls):
            raise ConfigurationError(f"{cls!r} is not a dataclass")
        super().__init__(cls)


class ModelCodec:
    """A pydantic model class or TypeAdapter, by its own JSON methods."""

    name = "pydantic"
    older = (JSON,)

    def __init__(self, model: Any) -> None:
        self._dump: Callable[[Any], bytes]
        self._load: Callable[[bytes], Any]
        if hasattr(model, "model_validate_json"):
            self._dump = lambda value: value.model_dump_json().encode()
            self._load = model.model_validate_json
        elif hasattr(model, "validate_json") and hasattr(model, "dump_json"):
            self._dump, self._load = model.dump_json, model.validate_json
        else:
            raise ConfigurationError(f"{model!r} is no pydantic model and no TypeAdapter")

    def dump(self, value: Any, /) -> bytes:
        return self._dump(value)

    def load(self, data: bytes, /) -> Any:
        return self._load(data)


def codec_for(choice: Any) -> Codec:
    """The codec meant by an option: a codec, a dataclass, a pydantic model or TypeAdapter."""
    if choice is None:
        return JSON
    if isinstance(choice, type) and dataclasses.is_dataclass(choice):
        return DataclassCodec(choice)
    if not isinstance(choice, type) and all(hasattr(choice, a) for a in ("name", "dump", "load")):
        codec: Codec = choice
        name = codec.name
        if not isinstance(name, str) or not name.isascii() or not 0 < len(name) <= NAME_MAX_CHARS:
            raise ConfigurationError(
                f"a codec's name must be 1 to {NAME_MAX_CHARS} ASCII characters, not {name!r}"
            )
        return codec
    return ModelCodec(choice)


def return_codec(fn: Callable[..., Any], what: str) -> Codec | None:
    """The codec for what this function is annotated to return; None if that is plain JSON, or if
    there is no annotation that can be read. Raises ConfigurationError for a type that cannot be
    stored; `what` says in it whose function it is."""
    hint = return_hint(fn)
    return None if hint is None else type_codec(hint, what)


def type_codec(hint: Any, what: str) -> Codec | None:
    """The codec for values of an annotated type: see `return_codec`."""
    if _is_plain(hint):
        return None
    parts = list(_parts(hint))
    if any(hasattr(part, "model_validate_json") for part in parts):
        is_model = hasattr(hint, "model_validate_json")
        return ModelCodec(hint if is_model else sys.modules["pydantic"].TypeAdapter(hint))
    unknown = [part for part in parts if not _is_known(part)]
    if unknown:
        shown = getattr(unknown[0], "__qualname__", None) or repr(unknown[0])
        raise ConfigurationError(
            f"{what}: it returns a {shown}, which could not be stored once it has run; return "
            "plain JSON values, a dataclass or a pydantic model, or give codec= a codec of your own"
        )
    return TypedCodec(hint)


# --- annotations ----------------------------------------------------------------------------------


def return_hint(fn: Callable[..., Any]) -> Any:
    """What the function is annotated to return; None if that says nothing."""
    try:
        hint = typing.get_type_hints(fn, include_extras=False).get("return")
    except Exception:  # an annotation may name what is imported for type checkers only
        return None
    while (meant := getattr(hint, "__supertype__", getattr(hint, "__value__", None))) is not None:
        hint = meant  # of a NewType, of a `type` alias
    return None if isinstance(hint, typing.TypeVar) or hint in _NOTHING else hint


def _is_plain(hint: Any) -> bool:
    """True if JSON gives back what it was given: then the usual codec will do."""
    if isinstance(hint, typing.Hashable) and hint in _PLAIN:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if typing.is_typeddict(hint):
        return all(map(_is_plain, typing.get_type_hints(hint).values()))
    if origin is typing.Literal:
        return all(type(one) in _PLAIN for one in args)
    if origin in (*_LISTS, *_DICTS, *_UNIONS):
        return all(map(_is_plain, args))
    return False


def _parts(hint: Any, seen: frozenset[Any] = frozenset()) -> Iterable[Any]:
    """The types that an annotation is made of. Of several in a union only one may be other than
    plain, since JSON would not tell them apart; else the union itself is a part."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if _is_plain(hint):
        return
    if hint in seen:
        return
    inner: Iterable[Any] = ()
    if typing.is_typeddict(hint) or _is_named_tuple(hint) or dataclasses.is_dataclass(hint):
        yield hint
        inner = typing.get_type_hints(hint).values()
    elif origin in _UNIONS:
        others = [one for one in args if one is not type(None)]
        if len(others) > 1:
            yield hint
        inner = others
    elif origin in (*_LISTS, *_SETS, *_DICTS, tuple):
        inner = [one for one in args if one is not ...]
        if origin in _DICTS and args and args[0] is not str:
            yield hint
    else:
        yield hint
    for one in inner:
        yield from _parts(one, seen | {hint})


def _is_known(part: Any) -> bool:
    if part in _WRITTEN or part in (*_SETS, tuple) or typing.is_typeddict(part):
        return True
    is_enum = isinstance(part, type) and issubclass(part, enum.Enum)
    return is_enum or _is_named_tuple(part) or _is_dataclass(part)


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _is_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


# --- values ---------------------------------------------------------------------------------------


def _inner(hint: Any, value: Any) -> Any:
    """The annotation of a value that may be None as well, or of a union's one type that JSON does
    not have."""
    while typing.get_origin(hint) in _UNIONS:
        others = [one for one in typing.get_args(hint) if one is not type(None)]
        if value is None or len(others) != 1:
            return Any
        hint = others[0]
    return hint


def _written(hint: Any, value: Any) -> Any:
    """The value as JSON has it."""
    hint = _inner(hint, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _is_dataclass(hint) and type(value) is not hint:
            raise TypeError(f"expected a {hint.__name__}, got a {type(value).__name__}")
        hints = typing.get_type_hints(type(value))
        fields = dataclasses.fields(value)
        return {one.name: _written(hints[one.name], getattr(value, one.name)) for one in fields}
    if _is_dataclass(hint):
        raise TypeError(f"expected a {hint.__name__}, got a {type(value).__name__}")
    if hint in _WRITTEN:
        if type(value) is not hint:
            raise TypeError(f"expected a {hint.__name__}, got a {type(value).__name__}")
        return _WRITTEN[hint].write(value)
    if isinstance(value, enum.Enum) and isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _written(each, item) for key, item, each in _items(hint, value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_written(each, item) for item, each in _elements(hint, list(value))]
    return value


def _read(hint: Any, data: Any) -> Any:
    """The value that was written as this."""
    hint = _inner(hint, data)
    if _is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = [one for one in dataclasses.fields(hint) if one.init and one.name in data]
        return hint(**{one.name: _read(hints[one.name], data[one.name]) for one in fields})
    if hint in _WRITTEN:
        return _WRITTEN[hint].read(data)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(data)
    if isinstance(data, dict):
        return {key: _read(each, item) for key, item, each in _items(hint, data)}
    if isinstance(data, list):
        made = [_read(each, item) for item, each in _elements(hint, data)]
        return _collection(hint, made)
    return data


def _items(hint: Any, value: dict[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    """The keys and values of a dict, each with the annotation of the value."""
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        return [(key, item, hints.get(key, Any)) for key, item in value.items()]
    args = typing.get_args(hint)
    each = args[1] if len(args) == 2 else Any
    return [(key, item, each) for key, item in value.items()]


def _elements(hint: Any, value: list[Any]) -> Iterable[tuple[Any, Any]]:
    """The elements of a list, each with its annotation."""
    args = typing.get_args(hint)
    if _is_named_tuple(hint):
        args = tuple(typing.get_type_hints(hint).get(name, Any) for name in hint._fields)
    elif typing.get_origin(hint) is not tuple or args[1:] == (...,):
        args = (args[0] if args else Any,) * len(value)
    return list(zip(value, args, strict=True))


def _collection(hint: Any, made: list[Any]) -> Any:
    if _is_named_tuple(hint):
        return hint(*made)
    kind = typing.get_origin(hint) or hint
    if kind is tuple:
        return tuple(made)
    if kind in _SETS:
        return frozenset(made) if kind is frozenset else set(made)
    return made
