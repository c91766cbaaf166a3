"""Every check has a name of its own, and its line in the documentation."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from docs_build import doctor_page

from oncekey.doctor import diagnose
from oncekey.engine import store_urls
from oncekey.stores.inspection import Check, Severity

CHECKS = doctor_page.all_checks()


def test_the_page_is_made_from_the_checks() -> None:
    assert doctor_page.PAGE.read_text() == doctor_page.page(), "run `make docs`"
    for check in CHECKS:
        assert f"\n| `{check.name}` | " in doctor_page.page()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_says_everything(check: Check) -> None:
    assert re.fullmatch(r"(store|postgres|sqlite|redis|etcd|app|proxy)\.[a-z-]+", check.name)
    assert all(len(text) > 10 for text in check[1:])
    assert not any(text.endswith(".") for text in check[1:]), "they are put into sentences"


def test_names_of_checks_are_their_own() -> None:
    assert [name for name, count in Counter(c.name for c in CHECKS).items() if count > 1] == []


def test_severities_are_in_order() -> None:
    ranks = [Severity(name).rank for name in ("ok", "info", "warning", "broken")]
    assert ranks == [0, 1, 2, 3]


def test_a_store_without_checks_of_its_own_is_not_called_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third party's store may bring none; then that is what is reported."""
    monkeypatch.setitem(store_urls.BUILT_IN, "theirs", "oncekey.stores.memory")
    found = diagnose("theirs://somewhere")
    first = found.findings[0]
    assert (first.check, first.severity) == ("store.checkup", Severity.INFO)
    assert "not checked: the store of theirs://" in first.what
    assert found.count(Severity.OK) == 0
    assert found.is_healthy(strict=True)
