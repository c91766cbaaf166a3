"""Four services under kill -9 and lost responses: every effect of every order happens once.

Checkout, inventory, payments and notifications are processes with a store each, and the client is
a process too. In the end every order has exactly one reservation, one charge and one receipt, the
client's responses name exactly these, and no key is unfinished (I1, I2, I3, I10).

The proof forces each fault once: every process is killed between its effect and its outcome, and
every proxy loses a response. In the other run random processes are killed at random moments while
the client places its orders, and the network loses responses at random; it judges safety alone.
`make soak-services` places 500 orders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fleet import common
from tests.fleet.audit import Report, audit
from tests.fleet.fleet import SHOPPER, VICTIMS, Fleet
from tests.support.servers import Gunicorn, Uvicorn, require
from tests.support.servers.processes import wait_until

SECONDS = 270  # longer than any fleet takes that is not stuck


@pytest.fixture(autouse=True)
def _servers() -> None:
    require(lambda: Uvicorn("x:y"))
    require(lambda: Gunicorn("x:y"))


def summarize(fleet: Fleet, report: Report, seed: int) -> None:
    """Print what happened during the run."""
    events = fleet.event_counts()
    happened = Counter(
        {
            "kills": fleet.kills.total(),
            "lost responses": sum(proxy.lost for proxy in fleet.proxies.values()),
            "cuts": fleet.cuts,
            "replays": events["replayed"],
            "replays to the client": report.replays,
            "takeovers": events["takeover"],
            "lost leases": events["lost"],
        }
    )
    counts = ", ".join(f"{number} {what}" for what, number in happened.items())
    kills = ", ".join(f"{name} {fleet.kills[name]}" for name in VICTIMS)
    line = f"\n  fleet, seed {seed}: {fleet.orders} orders, {counts} (killed: {kills})\n"
    os.write(1, line.encode())


def test_i1_every_process_killed_between_its_effect_and_its_outcome_repeats_nothing(
    tmp_path: Path,
) -> None:
    """Every proxy loses a response, too. Then checkout is killed once more, with steps that are
    done and whose responses it has not got."""
    with Fleet(tmp_path, orders=2, loss=0, dies=True) as fleet:
        fleet.wait_with_restarts(lambda: fleet.answered() == 1, "the first order is done", SECONDS)
        first = {name: fleet.event_counts(name) for name in common.SERVICES}
        with checkout_killed_before_its_responses(fleet):
            fleet.wait_with_restarts(fleet.is_done, "the second order is done", SECONDS)
        second = {name: fleet.event_counts(name) - first[name] for name in common.SERVICES}
    report = audit(tmp_path, 2)
    assert report.violations == []
    # Everything that was to happen has happened.
    assert [name for name in VICTIMS if not common.death_mark(tmp_path, name).exists()] == []
    assert all(proxy.lost for proxy in fleet.proxies.values())
    # Inventory leaves no key behind: it commits with the row.
    assert all(first[name]["takeover"] for name in ("payments", "notifications", "checkout"))
    assert all(first[name]["replayed"] for name in common.SERVICES)
    assert report.replays  # to the client that had died with its response
    assert second["checkout"]["takeover"]
    assert all(second[name]["replayed"] for name in ("inventory", "payments"))


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.parametrize(
    ("orders", "kills", "seconds"),
    [(500, 100, 1_500)],
)
def test_i1_every_order_has_one_reservation_charge_and_receipt(
    orders: int,
    kills: int,
    seconds: float,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Fleet(tmp_path, orders=orders, seed=seed) as fleet:
        try:
            fleet.run(kills, seconds)
        except BaseException as error:
            error.add_note(f"seed {seed}\n{fleet.logs()}")
            raise
    report = audit(tmp_path, orders)
    with capsys.disabled():
        summarize(fleet, report, seed)
    assert report.violations == []


# --- one kill, and fleets that are broken on purpose ---------------------------------------------


@contextmanager
def checkout_killed_before_its_responses(fleet: Fleet) -> Iterator[None]:
    """Let the client place its last order, and kill checkout and start it again.

    The kill comes when inventory and payments have done their work, and no response has arrived.
    """
    both = ("inventory", "payments")
    claims = {name: fleet.event_counts(name)["claimed"] for name in both}

    def has_done(name: str) -> bool:
        return fleet.event_counts(name)["claimed"] > claims[name] and not fleet.is_busy(name)

    for name in both:
        fleet.proxies[name].hold("replies")
    (fleet.folder / common.LAST_ORDER_FILE).touch()
    fleet.start(SHOPPER)
    wait_until(lambda: all(map(has_done, both)), "both services have done their work", SECONDS)
    fleet.kill("checkout")
    for name in both:
        fleet.proxies[name].resume()
    fleet.start("checkout")
    yield


def test_a_repeated_step_that_did_not_store_its_request_is_a_mismatch(
    tmp_path: Path,
) -> None:
    with (
        Fleet(tmp_path, orders=1, loss=None, sabotage=common.NO_REQUEST) as fleet,
        checkout_killed_before_its_responses(fleet),
    ):
        wait_until(
            lambda: fleet.event_counts()["mismatch"] >= 2,
            "both services have refused the step",
            SECONDS,
        )


@pytest.mark.soak
def test_a_new_key_for_every_try_leads_to_duplicates(tmp_path: Path) -> None:
    """Lost responses are enough for that; no process is killed."""
    with Fleet(tmp_path, orders=4, loss=0, sabotage=common.RANDOM_KEYS) as fleet:
        fleet.run(0, SECONDS)
    violations = audit(tmp_path, 4).violations
    for service in common.LEDGERS:
        assert any(f"{service} has 2 rows" in violation for violation in violations)
