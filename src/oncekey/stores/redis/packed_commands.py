"""Commands as the scripts take them, and the arguments of a record that is written anew.

This module knows the layout of a record's head (stores/record_format.py) and no script's text.
"""

from __future__ import annotations

import struct
from typing import Final

from oncekey.core.commands import Claim, Finish, Renew
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record, State
from oncekey.core.state_machine import has_ended
from oncekey.stores.record_format import (
    HEAD,
    LENGTHS_MAX,
    OWNER_BYTES,
    VERSION,
    Stored,
    pack_record,
)

FENCE_BYTES: Final = 8

_PENDING: Final = int(State.PENDING)
_FENCE_REVISION: Final = struct.Struct(">qI")
_FINISH: Final = struct.Struct(">Bq16s")
_RENEW: Final = struct.Struct(">q16sq")
_REVISIONS: Final = 2**32


def claim_record(claim: Claim) -> bytes:
    """The record of a first claim, without the times that only the server knows: in place of the
    end of its lease it has the length."""
    (
        _, owner, fingerprint, lease, keep, audit, retry_safe,
        scope, label, key, in_transaction, keep_unknown,
    ) = claim[:]  # fmt: skip
    texts = (fingerprint, scope.encode(), label.encode(), key.encode())
    lengths = [len(text) for text in texts]
    if len(owner) != OWNER_BYTES or max(lengths) > LENGTHS_MAX:
        raise ConfigurationError(
            f"an owner has {OWNER_BYTES} bytes, and a fingerprint, scope, label or key at most "
            f"{LENGTHS_MAX}"
        )
    head = HEAD.pack(
        VERSION, _PENDING, retry_safe and not in_transaction, 0, 1, 1, 0, lease, 0, keep, audit,
        keep_unknown, owner, *lengths, 0, 0,
    )  # fmt: skip
    return b"".join((head, *texts))


def finish_head(finish: Finish) -> bytes:
    return _FINISH.pack(finish.state, finish.fence, finish.owner)


def renew_head(renew: Renew) -> bytes:
    return _RENEW.pack(renew.fence, renew.owner, renew.lease)


def replace_arguments(
    before: Stored | None, write: Record, archive: Record | None
) -> tuple[bytes, bytes, int, int | bytes, bytes, int | bytes]:
    """The six arguments of a record that is written in place of the version that was read; that is
    None if there was none."""
    # A key that waits for a decision must not vanish by itself, whatever it says.
    lasts = write.state == State.PENDING or write.is_undecided
    version, revision = b"", 0
    if before is not None:
        version = _FENCE_REVISION.pack(before.record.fence, before.revision)
        revision = (before.revision + 1) % _REVISIONS
    return (
        version,
        pack_record(write, revision),
        write.sweep_at,
        b"" if lasts else write.audit_until,
        b"" if has_ended(write) else b"1",
        b"" if archive is None else archive.audit_until,
    )
