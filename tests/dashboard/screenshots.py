"""`python -m tests.dashboard.screenshots FOLDER` takes pictures of the dashboard.

They are the overview, a key and the search, in light and dark, on a desk and on a phone. Some of
them are in docs/assets.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import ViewportSize
from tests.dashboard.sample_keys import CHARGES, HOUR, SECOND, SampleKeys, response, value
from tests.dashboard.served_dashboard import TOKEN, served
from tests.demo.browser import chromium, program

from oncekey.core import codec as codecs
from oncekey.core.origin import Origin
from oncekey.core.record import State
from oncekey.core.step_format import pack_step
from oncekey.dashboard import Dashboard
from oncekey.stores.sqlite import SQLiteStore

REFUNDS = Origin("http", "POST /charges/{id}/refunds", "refund_charge")
DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


class PastClock:
    """A store's clock that is set to times before now."""

    def __init__(self) -> None:
        self._now = int(time.time() * SECOND)
        self.ago = 0

    def __call__(self) -> int:
        return self._now - self.ago


def filled(path: Path) -> str:
    """A store as it is at three in the morning; returns the id of the key to look at."""
    clock = PastClock()
    store = SQLiteStore(path, clock=clock)
    keys = SampleKeys(store)
    chance = random.Random(7)
    for number in range(900):
        clock.ago = (900 - number) * SECOND // 15 + HOUR // 3600
        scope = f"acct_{chance.randrange(40)}"
        origin = chance.choice([CHARGES, CHARGES, CHARGES, REFUNDS])
        keys.ended("http", f"order-{number}", response(201, {}), scope=scope, origin=origin)
    clock.ago = 3 * HOUR
    held = keys.claim("checkout", "cart-17", scope="acct_3", lease=30 * SECOND)
    clock.ago -= SECOND // 3
    reserved = pack_step({"external_id": "hold_81", "status": "201"}, value({"hold": "hold_81"}))
    keys.step(held, "inventory:reserve", True, reserved)
    clock.ago -= SECOND
    keys.step(held, "payment:charge", False, pack_step({"key": "ok1-7c1e90d4"}, value({})))
    clock.ago = 2 * HOUR
    keys.unknown("http", "order-1042", scope="acct_12", origin=CHARGES)
    clock.ago = 40 * 60 * SECOND
    keys.claim("export", "night-1", scope="", lease=SECOND, retry_safe=True)
    error = codecs.pack_error(ValueError("card_declined"))
    keys.ended("http", "order-1040", error, State.FAILED, scope="acct_5", origin=REFUNDS)
    for ago in (7 * 60, 42, 11, 9, 3, 2, 1, 0):
        clock.ago = ago * SECOND + SECOND // 5
        keys.claim("http", f"order-2{ago}", scope="acct_9", origin=CHARGES)
    store.close()
    return held[0].hex()


# What the documentation shows: a page, its look, and whether all of it or what a window has.
SHOTS = (
    ("overview", "light", True),
    ("overview", "dark", True),
    ("overview", "phone", False),
    ("key", "light", True),
    ("key", "dark", False),
    ("key", "phone", True),
    ("search", "light", False),
)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        id = filled(Path(made) / "shop.db")
        app = Dashboard(f"sqlite:///{Path(made) / 'shop.db'}", token=TOKEN)
        for second in range(0, 300, 5):  # as if the page had been open for five minutes
            app._curve.add(time.time() - 310 + second, 9 + 4 * math.sin(second / 40) + second % 3)
        paths = {"overview": "/", "key": f"/keys/{id}", "search": "/keys"}
        with served(app) as address, chromium(program()) as browser:
            for name, look, whole in SHOTS:
                context = browser.new_context(
                    viewport=PHONE if look == "phone" else DESK,
                    device_scale_factor=2 if look == "phone" else 1,
                    color_scheme="dark" if look == "dark" else "light",
                )
                page = context.new_page()
                page.goto(address + app.sign_in_path())
                page.goto(address + paths[name])
                page.screenshot(path=folder / f"dashboard-{name}-{look}.png", full_page=whole)
                context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
