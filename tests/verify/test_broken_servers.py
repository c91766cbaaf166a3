"""The verifier names the fault of each server of examples/broken, and finds none in a good one.

Each broken server meets the probe of the guarantee that it breaks, all of them at the same time on
one event loop; `correct` and the demo meet every probe. Nobody waits for keys to expire: the clock
of the server that forgets them goes on when the probe would wait. `make verify-broken` and
`make verify-demo` are the long forms: every probe on every server, in processes of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from examples.broken.catalog import FAULTS
from tests.support.verified_apis import served_broken, served_demo

from oncekey.verify.probe import Limits, Probe
from oncekey.verify.probes import PROBES, key_expiry
from oncekey.verify.profile import IETF, ONCEKEY, Profile
from oncekey.verify.target import Target
from oncekey.verify.verdict import Guarantee, Status, Verdict
from oncekey.verify.verification import verify

Verdicts = dict[Guarantee, Verdict]

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
    "success-without-effect": Guarantee.SERVER_ERRORS,
}
# The demo has neither an empty nor a large response, and keeps keys for an hour.
UNSEEN_ON_DEMO = {Guarantee.EXPIRY, Guarantee.NO_CONTENT, Guarantee.LARGE_RESPONSE}


# Longer than a busy machine takes.
LIMITS = Limits(concurrency=20, timeout=120.0, patience=120.0, total_seconds=280.0)
PATIENT = replace(LIMITS, total_seconds=10_000.0)  # the expiry of keys, on a clock of its own
KEEP_SECONDS = 3_600.0


async def _verified(
    target: Target, probes: Sequence[Probe], profile: Profile = IETF, limits: Limits = LIMITS
) -> Verdicts:
    """Runs the probes all at the same time, because most of them wait most of the time."""
    done = await asyncio.gather(
        *(verify(target, profile, [probe], limits=limits) for probe in probes)
    )
    return {one.guarantee: one for each in done for one in each.verdicts}


async def _broken(name: str, guarantee: Guarantee) -> Verdicts:
    async with served_broken(name) as target:
        return await _verified(target, [one for one in PROBES if one.guarantee is guarantee])


async def _correct() -> Verdicts:
    """Every probe on the server without a fault; expiry on one whose clock goes on by the probe's
    own waits, to the moments that it wants to wait for."""
    expiry = [one for one in PROBES if one.guarantee is Guarantee.EXPIRY]
    now = time.monotonic()

    async def go_on(moment: float) -> None:
        nonlocal now
        now = moment

    async with (
        served_broken("correct") as target,
        served_broken("correct", keep_seconds=KEEP_SECONDS, now=lambda: now) as forgetful,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_expiry, "_sleep_until", go_on)
            most, last = await asyncio.gather(
                _verified(target, [one for one in PROBES if one not in expiry]),
                _verified(forgetful, expiry, limits=PATIENT),
            )
    return {**most, **last}


async def _demo() -> Verdicts:
    async with served_demo() as target:
        return await _verified(target, PROBES, ONCEKEY)


async def _all() -> dict[str, Verdicts]:
    names = [*BROKEN, "correct", "demo"]
    broken = (_broken(name, guarantee) for name, guarantee in BROKEN.items())
    done = await asyncio.gather(*broken, _correct(), _demo())
    return dict(zip(names, done, strict=True))


@pytest.fixture(scope="module")
def found() -> dict[str, Verdicts]:
    return asyncio.run(_all())


def _faults(verdicts: Verdicts) -> set[str]:
    return {one.fault.slug for verdict in verdicts.values() for one in verdict.violations}


def _unseen(verdicts: Verdicts) -> set[Guarantee]:
    return {one for one, verdict in verdicts.items() if verdict.status is Status.NOT_OBSERVABLE}


def test_every_broken_server_has_a_probe() -> None:
    assert BROKEN.keys() == FAULTS.keys()
    assert set(BROKEN.values()) <= {probe.guarantee for probe in PROBES}


@pytest.mark.parametrize("name", BROKEN)
def test_verifier_names_the_fault_and_no_other(name: str, found: dict[str, Verdicts]) -> None:
    assert _faults(found[name]) == {name}


@pytest.mark.parametrize("name", BROKEN)
def test_violation_shows_the_requests_that_anybody_can_repeat(
    name: str, found: dict[str, Verdicts]
) -> None:
    (verdict,) = found[name].values()
    assert all(violation.exchanges for violation in verdict.violations)


def test_correct_server_has_no_fault_and_all_of_it_was_seen(found: dict[str, Verdicts]) -> None:
    assert _faults(found["correct"]) == set()
    assert _unseen(found["correct"]) == set()
    expiry = found["correct"][Guarantee.EXPIRY]
    assert expiry.summary.endswith("a retry after that runs again, as a new operation")


def test_demo_has_no_fault(found: dict[str, Verdicts]) -> None:
    assert _faults(found["demo"]) == set()
    assert _unseen(found["demo"]) == UNSEEN_ON_DEMO
