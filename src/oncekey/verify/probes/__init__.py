"""The probes, one for each guarantee, in the order in which they run."""

from __future__ import annotations

from oncekey.verify.probe import Probe
from oncekey.verify.probes import (
    error_responses,
    key_scope,
    key_syntax,
    other_body,
    replay_fidelity,
)

PROBES: tuple[Probe, ...] = (
    *other_body.PROBES,
    *key_scope.PROBES,
    *key_syntax.PROBES,
    *replay_fidelity.PROBES,
    *error_responses.PROBES,
)
