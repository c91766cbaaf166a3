"""The probes, one for each guarantee, in the order in which they run."""

from __future__ import annotations

from oncekey.verify.probe import Probe
from oncekey.verify.probes import (
    concurrent_duplicates,
    error_responses,
    key_expiry,
    key_scope,
    key_syntax,
    lost_responses,
    other_body,
    replay_fidelity,
    slow_handlers,
    unusual_responses,
)

PROBES: tuple[Probe, ...] = (
    *concurrent_duplicates.PROBES,
    *lost_responses.PROBES,
    *slow_handlers.PROBES,
    *other_body.PROBES,
    *key_scope.PROBES,
    *key_syntax.PROBES,
    *replay_fidelity.PROBES,
    *error_responses.PROBES,
    *unusual_responses.PROBES,
    *key_expiry.PROBES,
)
