"""A first run as one straight line of Python: the least that any design has to do.

The same hashing, JSON, claim, finish, context and cache as `Once.run`, with nothing around them: no
waiting, no retries, no duplicates, no heartbeat, no events. It is a yardstick, not a store.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

_lengths = Struct(">3I").pack
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_current: ContextVar[object] = ContextVar("current", default=None)


class _Record(NamedTuple):
    state: int
    fingerprint: bytes
    owner: bytes
    fence: int
    lease_until: int
    finished_at: int
    keep: int
    scope: str
    operation: str
    body: bytes


class _Result(NamedTuple):
    value: Any
    replayed: bool
    fence: int


class StraightLine:
    """Claims, runs and finishes in a dict."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[bytes, _Record] = {}
        self._cache: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}

    def run(
        self,
        operation: str,
        key: str,
        body: Callable[[object], Any],
        scope: str,
        request: Any,
    ) -> _Result:
        if (scope, operation, key) in self._cache:
            raise AssertionError("only first runs are counted")
        if not key.isprintable() or not scope.isprintable() or len(key) > 255:
            raise ValueError(key)
        who, what, name = scope.encode(), operation.encode(), key.encode()
        data = _lengths(len(who), len(what), len(name)) + who + what + name
        id = blake2b(data, digest_size=16, person=b"straight-id").digest()
        asked = _encode(request).encode("ascii")
        fingerprint = b"\x01" + blake2b(asked, digest_size=32, person=b"straight-fp").digest()
        owner = os.urandom(16)
        with self._lock:
            if id in self._records:
                raise AssertionError("only first runs are counted")
            now = time.time_ns() // 1_000
            record = _Record(
                1, fingerprint, owner, now, now + 30_000_000, 0, 86_400, scope, operation, b""
            )
            self._records[id] = record
        token = _current.set(record)
        try:
            value = body(record)
        finally:
            _current.reset(token)
        packed = b"\x01\x01\x04json" + _encode(value).encode()
        with self._lock:
            held = self._records[id]
            if held.owner != owner or held.fence != record.fence or held.state != 1:
                raise AssertionError("nobody else is here")
            ended = time.time_ns() // 1_000
            self._records[id] = _Record(
                2,
                held.fingerprint,
                held.owner,
                held.fence,
                held.lease_until,
                ended,
                held.keep,
                held.scope,
                held.operation,
                packed,
            )
        self._cache[scope, operation, key] = (fingerprint, packed)
        return _Result(json.loads(packed[7:]), False, record.fence)
