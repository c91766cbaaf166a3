"""What a dry run says that a guarantee lacks, before anything is sent, its probe lacks too."""

from __future__ import annotations

import pytest
from tests.verify.keyed_server import KeyedServer
from tests.verify.probe_checks import verdict_on
from tests.verify.sample_verification import TARGET

from oncekey.verify.observability import NEEDS, how_to_observe, missing_for
from oncekey.verify.probe import Probe
from oncekey.verify.probes import PROBES
from oncekey.verify.verdict import Guarantee, Status, not_observable


@pytest.mark.parametrize(
    "probe", [p for p in PROBES if p.guarantee in NEEDS], ids=lambda p: str(p.guarantee.slug)
)
def test_a_probe_lacks_what_a_dry_run_says_that_it_lacks(probe: Probe) -> None:
    verdict = verdict_on(KeyedServer, probe)
    assert verdict.status is Status.NOT_OBSERVABLE, verdict.summary


def test_every_guarantee_has_a_probe() -> None:
    assert sorted(probe.guarantee.slug for probe in PROBES) == sorted(g.slug for g in Guarantee)


def test_the_advice_names_the_option() -> None:
    verdict = not_observable(Guarantee.NO_CONTENT, "there is none", "Give one that gets 204.")
    assert how_to_observe(verdict, TARGET) == (
        "Give one that gets 204. Give one: --variant no-content=BODY, or [variants.no-content]."
    )
    assert missing_for(Guarantee.CONCURRENT_DUPLICATES, TARGET) is None
