"""The overview's figures, where there are more open keys than a page has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dashboard.reader import Reader
from tests.dashboard.sample_keys import SampleKeys
from tests.dashboard.served_dashboard import TOKEN, served

from oncekey.core.search import PAGE_LIMIT_MAX
from oncekey.dashboard import Dashboard
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import run_plan
from oncekey.engine.store_urls import blocking_store


def test_the_overview_marks_figures_that_end_with_a_page_of_open_keys(tmp_path: Path) -> None:
    """It said "Unknown 1,000", "of 0 pending" and how many records a database had read beyond the
    page, with a pending key behind it."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    store = blocking_store(url)
    keys = SampleKeys(store)
    keys.claim("payout", "behind")
    for n in range(PAGE_LIMIT_MAX + 5):
        keys.unknown("payout", f"payout-{n}")
    stats = run_plan(store, administration.measure_store())
    store.close()
    assert (stats.unknown, stats.looked_at, stats.complete) == (1_000, 1_000, False)
    with served(Dashboard(url, token=TOKEN)) as address, Reader(address) as reader:
        reader.sign_in()
        page = re.sub(r"<[^>]*>", " ", reader.get("/").text)
    text = " ".join(page.split())
    assert "Unknown 1,000 or more need a decision" in text
    assert "Stuck 0 or more of 0 or more pending" in text
    assert "Among the newest 1,000 records" in text
