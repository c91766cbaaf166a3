"""Fingerprints: what was asked, as a version byte and a digest.

The version stands in front so that a later way of hashing can be told from this one: a record
written under an unknown version is never called a mismatch, it is refused as unreadable.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from oncekey.core.canonical import canonical

VERSION = 1
_PREFIX = bytes([VERSION])
_PERSON = b"oncekey-fp-v1"


def fingerprint(request: Any, secret: bytes = b"") -> bytes:
    """The fingerprint of a request; None means that nothing is compared but its absence."""
    if type(request) is bytes:
        data = b"b" + request
    else:
        data = b"j" + canonical(request)
    return _PREFIX + blake2b(data, digest_size=32, key=secret, person=_PERSON).digest()


def version_of(stored: bytes) -> int:
    """The version a stored fingerprint was made under; 0 where there is none."""
    return stored[0] if stored else 0
