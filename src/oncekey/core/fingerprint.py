"""Fingerprints of requests: a version byte and a digest.

The version comes first so that a later way of hashing can be told from this one: a record that was
written under an unknown version is never called a mismatch, it is refused as unreadable. If no
request was given, NO_REQUEST takes the place of the version, so that the message about a mismatch
can say which call had none.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from oncekey.core.canonical_bytes import canonical

VERSION = 1
NO_REQUEST = 255  # in place of the version, if no request was given
_PREFIX = bytes([VERSION])
_PREFIX_NO_REQUEST = bytes([NO_REQUEST])
_PERSON = b"oncekey-fp-v1"


def fingerprint(request: Any, secret: bytes = b"") -> bytes:
    """The fingerprint of a request. None means that there is none, and equals only None."""
    if type(request) is bytes:
        data = b"b" + request
    else:
        data = b"j" + canonical(request)
    prefix = _PREFIX_NO_REQUEST if request is None else _PREFIX
    return prefix + blake2b(data, digest_size=32, key=secret, person=_PERSON).digest()


def version_of(stored: bytes) -> int:
    """The version of a stored fingerprint, or NO_REQUEST; 0 for an empty one."""
    return stored[0] if stored else 0
