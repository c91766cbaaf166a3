"""Identities, and the ids and child keys that are derived from them.

An identity is (scope, operation, key): who asks, for what, under which name. Its id is a
BLAKE2b-128 digest over length-prefixed parts, so no choice of delimiters gives two identities the
same id. With a secret the digest is keyed, so a leaked table cannot be searched for guessable
keys. The personalisation string carries the version of the format.

Child keys are what an operation sends downstream. Services in other languages derive them too, so
they are HMAC-SHA-256 over a label and framed parts (`derived`), which every standard library has.
docs/reference/child-keys.md is the specification and child-key-vectors.json its proof: a change
here is a new version of both, never an edit.

Owns the limits on the parts. No text is normalised: two spellings of "é" are two keys. Knows no
store.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from oncekey.core.errors import ConfigurationError, InvalidKey, MissingKey
from oncekey.core.fingerprint import fingerprints

KEY_MAX_CHARS = 255
SCOPE_MAX_CHARS = 255
OPERATION_MAX_CHARS = 100
TAG_BYTES: Final = 6
STEP_NAME_MAX_CHARS = 100
SECRET_MIN_BYTES = 16
SECRET_MAX_BYTES = 64

# Labels of derived keys: which kind, and its version. None may be the beginning of another.
CHILD_KEY: Final = b"oncekey-child-v1"
CHILD_UUID: Final = b"oncekey-child-uuid-v1"
KEY_FOR: Final = b"oncekey-key-for-v1"
# Not empty, because Java refuses that; at least 112 bits, because FIPS mode requires it.
NO_SECRET: Final = b"oncekey-no-secret"

_ID_PERSON = b"oncekey-id-v1"
_CHECK_PERSON = b"oncekey-check-v1"
_CHILD_PREFIX = "ok1-"
_CHILD_BYTES = 20
_OPERATIONS_REMEMBERED = 1_000

KeyLike = str | int | UUID

_three_lengths = Struct(">3I").pack
_four_lengths = Struct(">4I").pack


def derived(secret: bytes, label: bytes, a: bytes, b: bytes, c: bytes, d: bytes) -> bytes:
    """32 bytes that no other label and no other four parts give.

    All lengths first, then the parts: only the same four parts give the same message, whatever
    characters are in them (I8).
    """
    message = label + _four_lengths(len(a), len(b), len(c), len(d)) + a + b + c + d
    return hmac.digest(secret or NO_SECRET, message, "sha256")


class Identity(NamedTuple):
    """One intent of one caller, with its id."""

    scope: str
    operation: str
    key: str
    id: bytes

    @property
    def tag(self) -> str:
        """A short name for messages and logs; the raw key never goes there."""
        return self.id[:TAG_BYTES].hex()


class Identities:
    """Makes identities, fingerprints and child keys under one secret, or none."""

    def __init__(self, secret: bytes | str | None = None) -> None:
        self._secret = secret_bytes(secret)
        # Keyed and personalised once: copying a hash costs less than making one.
        self._id_hash = blake2b(digest_size=16, key=self._secret, person=_ID_PERSON)
        self.fingerprint = fingerprints(self._secret)  # of a request, under the same secret
        self._operations: set[str] = set()

    def identify(self, scope: str, operation: str, key: KeyLike) -> Identity:
        """The identity of these parts, which are checked; raises InvalidKey or MissingKey."""
        text, id = self.key_and_id(scope, operation, key)
        return Identity(scope, operation, text, id)

    def key_and_id(self, scope: str, operation: str, key: KeyLike) -> tuple[str, bytes]:
        """The key as text and the id of these parts, which are checked as in `identify`."""
        if type(key) is str and 0 < len(key) <= KEY_MAX_CHARS and key.isprintable():
            text = key
        else:
            text = _required(key, operation)
        if type(operation) is not str or operation not in self._operations:
            self._add_operation(operation)
        if type(scope) is not str or len(scope) > SCOPE_MAX_CHARS or not scope.isprintable():
            check_text("scope", scope, 0, SCOPE_MAX_CHARS)
        who, what, name = scope.encode(), operation.encode(), text.encode()
        # All lengths first, then the parts: only the same three parts give the same bytes (I8).
        lengths = _three_lengths(len(who), len(what), len(name))
        digest = self._id_hash.copy()
        digest.update(b"".join((lengths, who, what, name)))
        return text, digest.digest()

    def _add_operation(self, operation: str) -> None:
        """Check an operation name once: they are few and come again."""
        check_text("operation", operation, 1, OPERATION_MAX_CHARS)
        if len(self._operations) >= _OPERATIONS_REMEMBERED:
            self._operations.clear()
        self._operations.add(operation)

    def child_key(self, parent: Identity, name: str) -> str:
        """The key a step sends downstream: the same on every retry, different per tenant."""
        return _CHILD_PREFIX + self._child(CHILD_KEY, parent, name)[:_CHILD_BYTES].hex()

    def child_uuid(self, parent: Identity, name: str) -> UUID:
        """The same as a UUID, for services that take nothing else. Not made from the child key."""
        return _uuid8(self._child(CHILD_UUID, parent, name))

    def _child(self, label: bytes, parent: Identity, name: str) -> bytes:
        check_text("step name", name, 1, STEP_NAME_MAX_CHARS)
        who, what, key = parent.scope.encode(), parent.operation.encode(), parent.key.encode()
        return derived(self._secret, label, who, what, key, name.encode())

    def check_value(self) -> bytes:
        """What a store remembers of the secret, so that it can refuse another one later."""
        return blake2b(b"check", digest_size=16, key=self._secret, person=_CHECK_PERSON).digest()


def child_key(
    parent: KeyLike,
    name: str,
    *,
    scope: str = "",
    operation: str = "",
    secret: bytes | str | None = None,
) -> str:
    """A downstream key derived from a parent key and a step name.

    Inside a body prefer `attempt.child_key(name)`, which fills in scope, operation and secret.
    """
    return Identities(secret).child_key(_parent(scope, operation, parent), name)


def child_uuid(
    parent: KeyLike,
    name: str,
    *,
    scope: str = "",
    operation: str = "",
    secret: bytes | str | None = None,
) -> UUID:
    """A downstream UUID (version 8) derived from a parent key and a step name.

    For services that take a UUID, or 36 characters at most; elsewhere `child_key` has more bits.
    """
    return Identities(secret).child_uuid(_parent(scope, operation, parent), name)


def _parent(scope: str, operation: str, key: KeyLike) -> Identity:
    """An identity of which only the parts are needed."""
    check_text("scope", scope, 0, SCOPE_MAX_CHARS)
    check_text("operation", operation, 0, OPERATION_MAX_CHARS)
    return Identity(scope, operation, key_text(key), b"")


def _uuid8(digest: bytes) -> UUID:
    raw = bytearray(digest[:16])
    raw[6] = 0x80 | raw[6] & 0x0F  # version 8: custom bits
    raw[8] = 0x80 | raw[8] & 0x3F  # the variant of RFC 9562
    return UUID(bytes=bytes(raw))


def _required(key: KeyLike | None, operation: str) -> str:
    if key is None or key == "":
        how = "it is None" if key is None else "it has 0 characters"
        raise MissingKey(
            f"{operation}: a key is required and none came ({how}); give the same key with every "
            "retry of one operation, and another one with the next operation"
        )
    return key_text(key)


def key_text(key: KeyLike, name: str = "key") -> str:
    """A key as text; raises InvalidKey for what cannot be one, with `name` in the message."""
    if type(key) is str:
        text = key
    elif isinstance(key, str):
        text = str.__str__(key)  # of an enum of texts the text, not the enum's name
    elif isinstance(key, (int, UUID)) and not isinstance(key, bool):
        try:
            text = str(key)
        except ValueError as error:  # Python refuses to print a number of thousands of digits
            raise InvalidKey(f"this number is too large for the {name}: {error}") from error
    else:
        raise InvalidKey(
            f"the {name} must be text, an int or a UUID, not {type(key).__name__}; "
            "build the text yourself so that it stays the same across retries"
        )
    check_text(name, text, 1, KEY_MAX_CHARS)
    return text


def check_text(name: str, text: str, low: int, high: int) -> None:
    """Raise InvalidKey unless it is printable text of `low` to `high` characters."""
    # isprintable refuses control characters and lone surrogates, which are never meant
    # and which some drivers, logs and headers cut or rewrite.
    if type(text) is str and low <= len(text) <= high and text.isprintable():
        return
    if not isinstance(text, str):
        raise InvalidKey(f"the {name} must be text, not {type(text).__name__}")
    if not low <= len(text) <= high:
        raise InvalidKey(f"the {name} has {len(text)} characters; allowed are {low} to {high}")
    if not text.isprintable():
        raise InvalidKey(f"the {name} contains characters that cannot be printed")


def secret_bytes(secret: bytes | str | None) -> bytes:
    """A secret as bytes, empty for None; raises ConfigurationError for a bad one."""
    if secret is None:
        return b""
    raw = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(raw, bytes) or not SECRET_MIN_BYTES <= len(raw) <= SECRET_MAX_BYTES:
        raise ConfigurationError(
            f"the secret must have {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes"
        )
    return raw
