"""The links of the documentation lead somewhere, down to the heading.

README.md is also shown by the package index, which has no repository beside it: its links are
absolute. They begin with the project's own address, and what follows is a file of this tree.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, links, name_of, project

SOURCE = project()["urls"]["Source"]
IN_THE_TREE = (f"{SOURCE}/blob/main/", f"{SOURCE}/tree/main/")


def target_of(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None for another site."""
    path, _, anchor = link.partition("#")
    for prefix in IN_THE_TREE:
        if path.startswith(prefix):
            return ROOT / path.removeprefix(prefix), anchor
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


def test_links_of_the_readme_work_without_the_repository() -> None:
    assert [link for link in links(ROOT / "README.md") if "://" not in link] == []


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


def test_the_metadata_names_where_to_read_more() -> None:
    urls = project()["urls"]
    assert set(urls) == {"Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in urls.values())
    assert urls["Changelog"] == f"{SOURCE}/blob/main/CHANGELOG.md"
