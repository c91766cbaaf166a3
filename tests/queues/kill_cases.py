"""Which kills `make test` tries on a broker, as parameters of a test; the others are for soak."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from tests.queues.consumer_kills import COVERING, OTHERS, Case

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))


def kill_params(usual: Sequence[Case]) -> list[Any]:
    """Every point for both kinds of consumers: `usual` ones, and the rest with the mark of soak."""
    soak = pytest.mark.soak
    return [
        pytest.param(case, id=f"{case.kind}-{case.point}", marks=() if case in usual else soak)
        for case in (*COVERING, *OTHERS)
    ]


def cases_run(usual: Sequence[Case], parking: Sequence[Case]) -> list[Case]:
    """The cases that this run has to try."""
    return [*(usual if not SOAK else (*COVERING, *OTHERS)), *parking]
