"""Checkout, inventory, payments and notifications: kill -9, lost answers, and one of everything.

Each service is a process with its own store; the client is one too. While it places its orders,
random ones of the five are killed and started again, and the network between them loses answers.
In the end every order has exactly one reservation, one charge and one receipt, the client was told
exactly these, and no key is left open (I1, I2, I3, I10). ONCEKEY_SOAK=1 places 500 orders;
ONCEKEY_FLEET_SEED repeats a voyage as far as timing lets it.
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
ORDERS, KILLS, SECONDS = (500, 100, 1_500) if SOAK else (50, 10, 270)


@pytest.fixture(autouse=True)
def _servers() -> None:
    require(lambda: Uvicorn("x:y"))
    require(lambda: Gunicorn("x:y"))


def told(fleet: Fleet, report: Report, seed: int) -> Counter[str]:
    """What happened on the way, in numbers; also printed."""
    facts = fleet.facts()
    happened = Counter(
        {
            "kills": fleet.kills.total(),
            "lost answers": sum(proxy.lost for proxy in fleet.proxies.values()),
            "cuts": fleet.cuts,
            "replays": facts["replayed"],
            "replays told to the client": report.replays,
            "takeovers": facts["takeover"],
            "lost leases": facts["lost"],
        }
    )
    words = ", ".join(f"{number} {what}" for what, number in happened.items())
    kills = ", ".join(f"{name} {fleet.kills[name]}" for name in VICTIMS)
    line = f"\n  fleet, seed {seed}: {fleet.orders} orders, {words} (killed: {kills})\n"
    os.write(1, line.encode())
    return happened


@pytest.mark.timeout(SECONDS + 60)
def test_i1_every_order_has_one_of_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("ONCEKEY_FLEET_SEED") or random.randrange(10**6))
    with Fleet(tmp_path, orders=ORDERS, seed=seed) as fleet:
        try:
            fleet.sail(KILLS, SECONDS)
        except BaseException as error:
            error.add_note(f"seed {seed}\n{fleet.logs()}")
            raise
    report = audit(tmp_path, ORDERS)
    with capsys.disabled():
        happened = told(fleet, report, seed)
    assert report.complaints == []
    # It was no pleasure cruise.
    assert all(fleet.kills[name] for name in VICTIMS)
    assert all(proxy.lost for proxy in fleet.proxies.values())
    assert happened["kills"] >= KILLS
    assert happened["replays"]
    assert happened["takeovers"]


# --- one moment of it, and that it can fail -------------------------------------------------------


@contextmanager
def killed_before_the_answers(folder: Path, sabotage: str = "") -> Iterator[Fleet]:
    """One order. Its checkout is killed when inventory and payments have done their part and no
    answer has come back, and started again."""
    with Fleet(folder, orders=1, loss=None, sabotage=sabotage) as fleet:
        (folder / common.LAST).touch()
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


def test_what_was_done_before_a_kill_is_found_done(tmp_path: Path) -> None:
    with killed_before_the_answers(tmp_path) as fleet:
        fleet.sail(0, SECONDS)
        facts = fleet.facts()
    assert audit(tmp_path, 1).complaints == []
    assert facts["takeover"] >= 1
    assert facts["replayed"] >= 2


def test_a_step_that_does_not_keep_its_request_is_refused_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    with killed_before_the_answers(tmp_path, common.NO_REQUEST) as fleet:
        wait_until(lambda: fleet.facts()["mismatch"] >= 2, "both have refused it", SECONDS)


def test_with_a_new_key_for_every_try_there_are_duplicates(tmp_path: Path) -> None:
    """Nobody is killed here; lost answers are enough."""
    with Fleet(tmp_path, orders=4, loss=0, sabotage=common.RANDOM_KEYS) as fleet:
        fleet.sail(0, SECONDS)
    complaints = audit(tmp_path, 4).complaints
    for service in common.LEDGERS:
        assert any(f"{service} has 2 rows" in complaint for complaint in complaints)
