"""The servers of this folder by name. A faulty one is named as the verifier names its fault."""

from __future__ import annotations

from examples.broken.body_not_compared import BodyNotCompared
from examples.broken.cookies_replayed import CookiesReplayed
from examples.broken.failure_clobbers_success import FailureClobbersSuccess
from examples.broken.guard import Guard
from examples.broken.header_lines_joined import HeaderLinesJoined
from examples.broken.in_flight_before_mismatch import InFlightBeforeMismatch
from examples.broken.lost_on_disconnect import LostOnDisconnect
from examples.broken.mismatch_destroys_record import MismatchDestroysRecord
from examples.broken.race import Race
from examples.broken.replay_before_auth import ReplayBeforeAuth
from examples.broken.rerun_on_204 import RerunOn204
from examples.broken.rerun_on_large import RerunOnLarge
from examples.broken.stale_reset import StaleReset
from examples.broken.status_lost import StatusLost
from examples.broken.success_without_effect import SuccessWithoutEffect
from examples.broken.unscoped import Unscoped

FAULTS: dict[str, type[Guard]] = {
    "race": Race,
    "stale-reset": StaleReset,
    "failure-clobbers-success": FailureClobbersSuccess,
    "mismatch-destroys-record": MismatchDestroysRecord,
    "unscoped": Unscoped,
    "body-not-compared": BodyNotCompared,
    "in-flight-before-mismatch": InFlightBeforeMismatch,
    "rerun-on-204": RerunOn204,
    "rerun-on-large": RerunOnLarge,
    "replay-before-auth": ReplayBeforeAuth,
    "lost-on-disconnect": LostOnDisconnect,
    "status-lost": StatusLost,
    "cookies-replayed": CookiesReplayed,
    "header-lines-joined": HeaderLinesJoined,
    "success-without-effect": SuccessWithoutEffect,
}
SERVERS: dict[str, type[Guard]] = {"correct": Guard, **FAULTS}


def summary(name: str) -> str:
    """The first line of what a server's module says about it."""
    if name == "correct":
        return "Correct: the guard without a fault."
    module = __import__(SERVERS[name].__module__, fromlist=["__doc__"])
    return str(module.__doc__).splitlines()[0]
