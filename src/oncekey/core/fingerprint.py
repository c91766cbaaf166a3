"""Fingerprints of requests: a version byte and a digest.

The version comes first so that a later way of hashing can be told from this one: a record that was
written under an unknown version is never called a mismatch, it is refused as unreadable. If no
request was given, NO_REQUEST takes the place of the version, so that the message about a mismatch
can say which call had none.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from oncekey.core.canonical_bytes import canonical

VERSION = 1
NO_REQUEST = 255  # in place of the version, if no request was given
_PREFIX = bytes([VERSION])
_PREFIX_NO_REQUEST = bytes([NO_REQUEST])
_PERSON = b"oncekey-fp-v1"


def fingerprints(secret: bytes = b"") -> Callable[[Any], bytes]:
    """The function that gives the fingerprint of a request, under a secret or none. None means
    that there is no request, and equals only None."""
    keyed = blake2b(digest_size=32, key=secret, person=_PERSON)

    without = keyed.copy()
    without.update(b"j" + canonical(None))
    nothing = _PREFIX_NO_REQUEST + without.digest()

    def of(request: Any) -> bytes:
        if request is None:
            return nothing
        hashed = keyed.copy()  # copying a hash costs less than making one
        hashed.update(b"b" + request if type(request) is bytes else b"j" + canonical(request))
        return _PREFIX + hashed.digest()

    return of


def fingerprint(request: Any, secret: bytes = b"") -> bytes:
    """The fingerprint of one request."""
    return fingerprints(secret)(request)


def version_of(stored: bytes) -> int:
    """The version of a stored fingerprint, or NO_REQUEST; 0 for an empty one."""
    return stored[0] if stored else 0
