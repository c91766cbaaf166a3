"""Four services under kill -9 and lost responses: every effect of every order happens once.

Checkout, inventory, payments and notifications are processes with a store each, and the client is
a process too. While the client places its orders, random ones of the five are killed and started
again, and the network between them loses responses. In the end every order has exactly one
reservation, one charge and one receipt, the client's responses name exactly these, and no key is
unfinished (I1, I2, I3, I10). ONCEKEY_SOAK=1 places 500 orders. ONCEKEY_FLEET_SEED repeats a run as
far as the timing allows.
"""

from __future__ import annotations

import os
import random
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

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
ORDERS, KILLS, SECONDS = (500, 100, 1_500) if SOAK else (30, 5, 270)


@pytest.fixture(autouse=True)
def _servers() -> None:
    require(lambda: Uvicorn("x:y"))
    require(lambda: Gunicorn("x:y"))


def summarize(fleet: Fleet, report: Report, seed: int) -> Counter[str]:
    """Count what happened during the run, print the counts and return them."""
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
    return happened


@pytest.mark.timeout(SECONDS + 60)
def test_i1_every_order_has_one_reservation_charge_and_receipt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("ONCEKEY_FLEET_SEED") or random.randrange(10**6))
    with Fleet(tmp_path, orders=ORDERS, seed=seed) as fleet:
        try:
            fleet.run(KILLS, SECONDS)
        except BaseException as error:
            error.add_note(f"seed {seed}\n{fleet.logs()}")
            raise
    report = audit(tmp_path, ORDERS)
    with capsys.disabled():
        happened = summarize(fleet, report, seed)
    assert report.violations == []
    # The faults have really happened.
    assert all(fleet.kills[name] for name in VICTIMS)
    assert all(proxy.lost for proxy in fleet.proxies.values())
    assert happened["kills"] >= KILLS
    assert happened["replays"]
    assert happened["takeovers"]


# --- one kill, and fleets that are broken on purpose ---------------------------------------------


@contextmanager
def checkout_killed_before_its_responses(folder: Path, sabotage: str = "") -> Iterator[Fleet]:
    """Run one order whose checkout is killed and started again.

    The kill comes when inventory and payments have done their work, and no response has arrived.
    """
    with Fleet(folder, orders=1, loss=None, sabotage=sabotage) as fleet:
        (folder / common.LAST_ORDER_FILE).touch()
        both = [fleet.proxies[name] for name in ("inventory", "payments")]
        for proxy in both:
            proxy.hold("replies")
        fleet.start(SHOPPER)
        for proxy in both:
            proxy.wait_until_held("replies")
        fleet.kill("checkout")
        for proxy in both:
            proxy.resume()
        fleet.start("checkout")
        yield fleet


def test_steps_that_were_done_before_a_kill_are_replayed(tmp_path: Path) -> None:
    with checkout_killed_before_its_responses(tmp_path) as fleet:
        fleet.run(0, SECONDS)
        events = fleet.event_counts()
    assert audit(tmp_path, 1).violations == []
    assert events["takeover"] >= 1
    assert events["replayed"] >= 2


def test_a_repeated_step_that_did_not_store_its_request_is_a_mismatch(
    tmp_path: Path,
) -> None:
    with checkout_killed_before_its_responses(tmp_path, common.NO_REQUEST) as fleet:
        wait_until(
            lambda: fleet.event_counts()["mismatch"] >= 2,
            "both services have refused the step",
            SECONDS,
        )


def test_a_new_key_for_every_try_leads_to_duplicates(tmp_path: Path) -> None:
    """Lost responses are enough for that; no process is killed."""
    with Fleet(tmp_path, orders=4, loss=0, sabotage=common.RANDOM_KEYS) as fleet:
        fleet.run(0, SECONDS)
    violations = audit(tmp_path, 4).violations
    for service in common.LEDGERS:
        assert any(f"{service} has 2 rows" in violation for violation in violations)
