"""The one construction behind every derived key: HMAC-SHA-256 over a label and framed parts.

Other services repeat it in their own language, so it uses only what every standard library has.
docs/reference/child-keys.md is its specification and child-key-vectors.json its proof: a change
here is a new version of both, never an edit. Owns the bytes; knows neither limits nor prefixes.
"""

from __future__ import annotations

import hmac
from struct import Struct
from typing import Final

# Which kind of key, and its version. None may be the beginning of another.
CHILD_KEY: Final = b"oncekey-child-v1"
CHILD_UUID: Final = b"oncekey-child-uuid-v1"
KEY_FOR: Final = b"oncekey-key-for-v1"
# Not empty, for Java refuses that; not below 112 bits, for cryptography in FIPS mode does.
NO_SECRET: Final = b"oncekey-no-secret"

_four_lengths = Struct(">4I").pack


def derived(secret: bytes, label: bytes, a: bytes, b: bytes, c: bytes, d: bytes) -> bytes:
    """32 bytes that no other label and no other four parts give.

    All lengths first, then the parts: only the same four parts give the same message, whatever
    characters are in them (I8).
    """
    message = label + _four_lengths(len(a), len(b), len(c), len(d)) + a + b + c + d
    return hmac.digest(secret or NO_SECRET, message, "sha256")
