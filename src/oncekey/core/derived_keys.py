"""Keys that callers derive from a request, and namespaces of keys.

    kf1-9c1e...        key_for(...), 44 characters
    v2:kf1-9c1e...     the same in the namespace "v2", 61 characters at most

A namespace is a version of what a request means. Change it together with that meaning, and no old
key is ever used for a new request. Owns the form of both, and the messages about a key that cannot
be used, which never contain the key. Random keys are in engine/new_key.py, child keys in
identity.py. Knows no store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final
from uuid import UUID

from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.fingerprint import canonical
from oncekey.core.identity import (
    KEY_FOR,
    OPERATION_MAX_CHARS,
    KeyLike,
    check_text,
    derived,
    key_text,
    secret_bytes,
)

NAMESPACE_MAX_CHARS: Final = 16
NAMESPACES_MAX: Final = 16

_PREFIX: Final = "kf1-"
_DIGEST_BYTES: Final = 20
_NAMESPACE: Final = re.compile(rf"[a-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}")
_IN_NAMESPACE: Final = re.compile(rf"({_NAMESPACE.pattern}):(?=.)", re.DOTALL)


def key_for(
    operation: str,
    params: Any,
    *,
    occurrence: str | int | UUID | date | None = None,
    namespace: str | None = None,
    secret: bytes | str | None = None,
) -> str:
    """The same key for the same request, for callers that have nowhere to store one.

    The trap: two purchases of the same thing are the same request, so the second one is taken for
    a retry of the first and never made. `occurrence` tells them apart: a cart id, a date, a
    counter, whatever is the same on a retry and different the next time. It is used as text: 1 and
    "1" are the same, and so are a date and its ISO text.

    `namespace` marks the key ("v2:kf1-..."); with a `secret` nobody else can compute it.
    """
    check_text("operation", operation, 1, OPERATION_MAX_CHARS)
    # Neither a namespace nor an occurrence is ever empty, so an empty part means none.
    digest = derived(
        secret_bytes(secret),
        KEY_FOR,
        b"" if namespace is None else checked_namespace(namespace).encode(),
        operation.encode(),
        _canonical_params(params),
        b"" if occurrence is None else _occurrence_text(occurrence).encode(),
    )
    return in_namespace(_PREFIX + digest[:_DIGEST_BYTES].hex(), namespace)


def namespace_of(key: str) -> str | None:
    """The namespace of a key ("v2" of "v2:abc"), None where it has none."""
    found = _IN_NAMESPACE.match(key)
    return found[1] if found else None


def check_key(key: KeyLike, *, namespaces: Sequence[str] | None = None) -> str:
    """The key as text, if it can be used; with `namespaces`, only if it is in one of them.

    Raises InvalidKey, saying what is wrong and what to do.
    """
    try:
        text = key_text(key)
    except InvalidKey as error:
        raise InvalidKey(
            f"{error}; take new_key(), or key_for(...) where it cannot be stored"
        ) from error
    if namespaces is not None:
        require_namespace(text, checked_namespaces(namespaces))
    return text


# --- namespaces -------------------------------------------------------------------------------


def in_namespace(key: str, namespace: str | None) -> str:
    """The key, marked with a namespace if there is one."""
    return key if namespace is None else f"{checked_namespace(namespace)}:{key}"


def require_namespace(key: str, namespaces: Sequence[str]) -> None:
    """Raise InvalidKey unless the key is in one of these namespaces."""
    if namespace_of(key) in namespaces:
        return
    begins = " or ".join(f'"{name}:"' for name in namespaces)
    raise InvalidKey(
        f"the key is in no namespace that is accepted here; begin the key of a new request with "
        f"{begins}. Do not send an earlier request again under a new key before you know what "
        "became of it"
    )


def checked_namespaces(namespaces: Sequence[str]) -> tuple[str, ...]:
    """A list of namespaces to accept; raises ConfigurationError for anything else."""
    if isinstance(namespaces, str) or not 0 < len(namespaces) <= NAMESPACES_MAX:
        raise ConfigurationError(
            f"namespaces={namespaces!r} must be a list of 1 to {NAMESPACES_MAX} names, "
            "or None for keys of any kind"
        )
    try:
        return tuple(map(checked_namespace, namespaces))
    except InvalidKey as error:
        raise ConfigurationError(f"namespaces={namespaces!r}: {error}") from error


def checked_namespace(namespace: str) -> str:
    """The namespace, if it is one; raises InvalidKey."""
    if isinstance(namespace, str) and _NAMESPACE.fullmatch(namespace):
        return namespace
    raise InvalidKey(
        f"a namespace has 1 to {NAMESPACE_MAX_CHARS} characters of a-z, 0-9, '.', '_' and '-', "
        'such as "v2"; this one has others, or is too long or empty'
    )


# --- parts ------------------------------------------------------------------------------------


def _canonical_params(params: Any) -> bytes:
    try:
        return canonical(params)
    except InvalidKey as error:
        raise InvalidKey(
            f"no key can be made from these params ({error.__cause__}); give plain values (text, "
            "numbers, lists, dicts with text keys), bytes, or a dataclass"
        ) from error


def _occurrence_text(occurrence: str | int | UUID | date) -> str:
    if isinstance(occurrence, datetime):
        raise InvalidKey(
            "the occurrence must not be a time of day: a retry would have another one. Give a "
            "date, or, for a time that was planned, its text"
        )
    if isinstance(occurrence, date):
        return occurrence.isoformat()
    return key_text(occurrence, "occurrence")
