"""The servers of this folder by name."""

from __future__ import annotations

from examples.broken.body_not_compared import BodyNotCompared
from examples.broken.check_then_act import CheckThenAct
from examples.broken.cookies_replayed import CookiesReplayed
from examples.broken.failure_clobbers_success import FailureClobbersSuccess
from examples.broken.guard import Guard
from examples.broken.header_lines_joined import HeaderLinesJoined
from examples.broken.in_flight_before_mismatch import InFlightBeforeMismatch
from examples.broken.lost_on_disconnect import LostOnDisconnect
from examples.broken.mismatch_destroys_record import MismatchDestroysRecord
from examples.broken.replay_before_auth import ReplayBeforeAuth
from examples.broken.rerun_on_204 import RerunOn204
from examples.broken.rerun_on_large import RerunOnLarge
from examples.broken.status_lost import StatusLost
from examples.broken.unfenced_stale_reset import UnfencedStaleReset
from examples.broken.unscoped import Unscoped

FAULTS: dict[str, type[Guard]] = {
    "check_then_act": CheckThenAct,
    "unfenced_stale_reset": UnfencedStaleReset,
    "failure_clobbers_success": FailureClobbersSuccess,
    "mismatch_destroys_record": MismatchDestroysRecord,
    "unscoped": Unscoped,
    "body_not_compared": BodyNotCompared,
    "in_flight_before_mismatch": InFlightBeforeMismatch,
    "rerun_on_204": RerunOn204,
    "rerun_on_large": RerunOnLarge,
    "replay_before_auth": ReplayBeforeAuth,
    "lost_on_disconnect": LostOnDisconnect,
    "status_lost": StatusLost,
    "cookies_replayed": CookiesReplayed,
    "header_lines_joined": HeaderLinesJoined,
}
SERVERS: dict[str, type[Guard]] = {"correct": Guard, **FAULTS}


def summary(name: str) -> str:
    """The first line of what a server's module says about it."""
    if name == "correct":
        return "Correct: the guard without a fault."
    module = __import__(SERVERS[name].__module__, fromlist=["__doc__"])
    return str(module.__doc__).splitlines()[0]
