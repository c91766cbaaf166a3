"""Holds a request's body as it was read: in memory while it is small, else in a temporary file.

Hashed while it is written, so that comparing a large one never reads it again. Owns the file; who
makes a body closes it. Knows no framework and no loop.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Final

BODY_SPILL_BYTES: Final = 1024 * 1024  # from here on a body is in a file, not in memory
_CHUNK: Final = 64 * 1024


class Body:
    """What a client sent. Write all of it, then read it as often as it takes, one at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.size = 0
        self._chunks: list[bytes] = []
        self._file: IO[bytes] | None = None  # instead of them, once they are too many
        self._hash: blake2b | None = None
        if data:
            self.write(data)

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._file is None:
            self._chunks.append(chunk)
            if self.size > BODY_SPILL_BYTES:
                self._spill()
            return
        assert self._hash is not None
        self._hash.update(chunk)
        self._file.write(chunk)

    def _spill(self) -> None:
        self._hash = blake2b(digest_size=32)
        self._file = TemporaryFile()  # noqa: SIM115
        for chunk in self._chunks:
            self._hash.update(chunk)
            self._file.write(chunk)
        self._chunks = []

    def read(self) -> bytes:
        """All of it in one piece: for what is known to be small."""
        if self._file is None:
            if len(self._chunks) > 1:
                self._chunks = [b"".join(self._chunks)]
            return self._chunks[0] if self._chunks else b""
        self._file.seek(0)
        return self._file.read()

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Its parts from here on. What is written meanwhile is given too."""
        if self._file is None:
            rest = self.read()[start:]
            if rest:
                yield rest
            return
        while True:
            self._file.seek(start)
            chunk = self._file.read(_CHUNK)
            if not chunk:
                return
            start += len(chunk)
            yield chunk

    def open_file(self) -> IO[bytes]:
        """A file to read all of it from. It is closed with the body."""
        if self._file is None:
            return io.BytesIO(self.read())
        self._file.seek(0)
        return self._file

    def digest(self) -> bytes:
        if self._hash is not None:
            return self._hash.digest()
        return blake2b(self.read(), digest_size=32).digest()

    def close(self) -> None:
        """Nobody needs it any more."""
        if self._file is not None:
            self._file.close()
        self._chunks = []

    def __del__(self) -> None:
        # A run may outlive its request and the other way round: whoever is last lets it go.
        self.close()
