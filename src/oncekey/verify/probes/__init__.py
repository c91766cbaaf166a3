"""The probes, one for each guarantee, in the order in which they run."""

from __future__ import annotations

from oncekey.verify.probe import Probe
from oncekey.verify.probes import concurrent_duplicates

PROBES: tuple[Probe, ...] = (*concurrent_duplicates.PROBES,)
