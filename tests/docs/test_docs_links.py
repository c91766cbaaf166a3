"""The links of the documentation lead somewhere, down to the heading."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, links, name_of


def target_of(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None for another site."""
    path, _, anchor = link.partition("#")
    if "://" in link:
        return None
    return ((page.parent / path) if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links(page):
        target = target_of(page, link)
        if target is None:
            continue
        path, anchor = target
        assert path.exists(), f"{name_of(page)} links to {link}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(page)} links to {link}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.is_relative_to(ROOT / "docs")], ids=name_of
)
def test_links_of_the_site_stay_inside_it_or_are_absolute(page: Path) -> None:
    """A relative link out of docs/ would work in the repository only."""
    outside = [
        link
        for link in links(page)
        if "://" not in link
        and not (page.parent / link.partition("#")[0]).resolve().is_relative_to(ROOT / "docs")
    ]
    assert outside == []
