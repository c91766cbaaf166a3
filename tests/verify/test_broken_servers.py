"""The verifier names the fault of each server of examples/broken, and finds none in a good one.

Each broken server meets the probe of the guarantee that it breaks, all of them at the same time on
one event loop; `correct` and the demo meet every probe. `make verify-broken` and `make verify-demo`
are the long forms: every probe on every server, in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from examples.broken.catalog import FAULTS
from tests.support.verified_apis import served_broken, served_demo

from oncekey.verify.probe import Limits, Probe
from oncekey.verify.probes import PROBES
from oncekey.verify.profile import IETF, ONCEKEY
from oncekey.verify.verdict import Fault, Guarantee, Status
from oncekey.verify.verification import Verification, verify

# Fault -> the guarantee whose probe must name it.
BROKEN: dict[str, Guarantee] = {
    "race": Guarantee.CONCURRENT_DUPLICATES,
    "stale-reset": Guarantee.SLOW_HANDLER,
    "failure-clobbers-success": Guarantee.CONCURRENT_DUPLICATES,
    "mismatch-destroys-record": Guarantee.OTHER_BODY_AFTER,
    "unscoped": Guarantee.OTHER_CALLER,
    "body-not-compared": Guarantee.OTHER_BODY_AFTER,
    "in-flight-before-mismatch": Guarantee.OTHER_BODY_DURING,
    "rerun-on-204": Guarantee.NO_CONTENT,
    "rerun-on-large": Guarantee.LARGE_RESPONSE,
    "replay-before-auth": Guarantee.BAD_CREDENTIALS,
    "lost-on-disconnect": Guarantee.DISCONNECT,
    "status-lost": Guarantee.REPLAY_FIDELITY,
    "cookies-replayed": Guarantee.REPLAY_FIDELITY,
    "header-lines-joined": Guarantee.KEY_SYNTAX,
}
# The payments API of examples/broken remembers keys for a day, which nobody waits for.
UNSEEN_ON_CORRECT = {Guarantee.EXPIRY}
# The demo has neither an empty nor a large response.
UNSEEN_ON_DEMO = {Guarantee.EXPIRY, Guarantee.NO_CONTENT, Guarantee.LARGE_RESPONSE}


async def _verified(name: str, probes: Sequence[Probe]) -> Verification:
    async with served_broken(name) as target:
        return await verify(target, IETF, probes, limits=Limits(concurrency=20))


async def _each_with_its_probe() -> dict[str, Verification]:
    done = await asyncio.gather(
        *(
            _verified(name, [probe for probe in PROBES if probe.guarantee is guarantee])
            for name, guarantee in BROKEN.items()
        )
    )
    return dict(zip(BROKEN, done, strict=True))


@pytest.fixture(scope="module")
def verifications() -> dict[str, Verification]:
    return asyncio.run(_each_with_its_probe())


def _faults(done: Verification) -> set[Fault]:
    return {one.fault for verdict in done.verdicts for one in verdict.violations}


def _unseen(done: Verification) -> set[Guarantee]:
    return {one.guarantee for one in done.verdicts if one.status is Status.NOT_OBSERVABLE}


def test_every_broken_server_has_a_probe() -> None:
    assert BROKEN.keys() == FAULTS.keys()
    assert set(BROKEN.values()) <= {probe.guarantee for probe in PROBES}


@pytest.mark.parametrize("name", BROKEN)
def test_verifier_names_the_fault_and_no_other(
    name: str, verifications: dict[str, Verification]
) -> None:
    assert {fault.slug for fault in _faults(verifications[name])} == {name}


@pytest.mark.parametrize("name", BROKEN)
def test_violation_shows_the_requests_that_anybody_can_repeat(
    name: str, verifications: dict[str, Verification]
) -> None:
    (verdict,) = verifications[name].verdicts
    assert all(violation.exchanges for violation in verdict.violations)
    assert all(violation.what for violation in verdict.violations)


def test_correct_server_has_no_fault_and_nothing_is_hidden() -> None:
    done = asyncio.run(_verified("correct", PROBES))
    assert _faults(done) == set(), [verdict.summary for verdict in done.verdicts]
    assert _unseen(done) == UNSEEN_ON_CORRECT


def test_demo_has_no_fault() -> None:
    async def verified() -> Verification:
        async with served_demo() as target:
            return await verify(target, ONCEKEY, PROBES, limits=Limits(concurrency=20))

    done = asyncio.run(verified())
    assert _faults(done) == set(), [verdict.summary for verdict in done.verdicts]
    assert _unseen(done) == UNSEEN_ON_DEMO
