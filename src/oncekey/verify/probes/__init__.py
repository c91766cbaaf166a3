"""The probes, one for each guarantee, in the order in which they run."""

from __future__ import annotations

from oncekey.verify.probe import Probe
from oncekey.verify.probes import (
    concurrent_duplicates,
    key_expiry,
    lost_responses,
    slow_handlers,
    unusual_responses,
)

PROBES: tuple[Probe, ...] = (
    *concurrent_duplicates.PROBES,
    *lost_responses.PROBES,
    *slow_handlers.PROBES,
    *unusual_responses.PROBES,
    *key_expiry.PROBES,
)
