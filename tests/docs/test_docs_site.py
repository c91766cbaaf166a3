"""What the documentation site is made of: its navigation, diagrams and API reference.

`make docs-site` builds the site and is strict about it; these are the checks that are quick enough
for every run.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from docs_build import state_machine_page
from docs_build.diagrams import draw
from docs_build.option_lists import as_markdown
from docs_build.svg import DiagramError
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, name_of

import oncekey
import oncekey.client
import oncekey.queues

NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
IDENTIFIER = re.compile(r"^::: ([\w.]+)$", re.M)
DIAGRAMS = [(page, source) for page in PAGES for source in blocks(page, "mermaid")]
DOCUMENTED = {
    name
    for page in DOCS.glob("reference/api/*.md")
    for name in IDENTIFIER.findall(page.read_text())
}


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"- (?:[^:\n]+: )?([\w/.-]+\.md)$", NAVIGATION, re.M)
    assert sorted(listed) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    )


def test_the_list_of_decisions_is_complete() -> None:
    index = (DOCS / "adr" / "index.md").read_text()
    for path in DOCS.glob("adr/0*.md"):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        number, _, decision = title.partition(". ")
        assert f"{number}. [{decision}]({path.name})" in index, f"{path.name} is not listed"


def test_no_page_loads_anything_from_elsewhere() -> None:
    for page in DOCS.rglob("*.md"):
        assert not re.search(r"<(script|img|iframe|link)\b|!\[[^\]]*\]\(http", page.read_text())


# --- diagrams -------------------------------------------------------------------------------------


def test_there_is_a_diagram_per_scenario() -> None:
    page = DOCS / "explanation" / "scenarios.md"
    assert len(blocks(page, "mermaid")) == len(re.findall(r"^## ", page.read_text(), re.M)) >= 9


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: name_of(diagram[0]))
def test_every_diagram_can_be_drawn(diagram: tuple[Path, str]) -> None:
    drawn = draw(diagram[1])
    assert drawn.startswith("<svg ")
    assert drawn.endswith("</svg>")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "pie",
        "sequenceDiagram\nA->>B: nobody is declared",
        "sequenceDiagram\nparticipant A\nloop for ever",
        "stateDiagram-v2\nabsent --> elsewhere : move",
    ],
)
def test_a_diagram_with_an_unknown_line_is_refused(source: str) -> None:
    with pytest.raises(DiagramError):
        draw(source)


def test_texts_of_a_diagram_are_escaped() -> None:
    drawn = draw("sequenceDiagram\nparticipant A as <b>\nNote over A: x & y<br/>z")
    assert "&lt;b&gt;" in drawn
    assert "x &amp; y</tspan>" in drawn


def test_the_page_of_the_state_machine_is_made_from_its_table() -> None:
    assert state_machine_page.PAGE.read_text() == state_machine_page.page(), "run `make docs`"


# --- reference ------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_api_reference() -> None:
    assert {f"oncekey.{name}" for name in oncekey.__all__} <= DOCUMENTED
    assert {f"oncekey.client.{name}" for name in oncekey.client.__all__} <= DOCUMENTED
    assert {f"oncekey.queues.{name}" for name in oncekey.queues.__all__} <= DOCUMENTED


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_name_of_the_api_reference_exists_and_is_described(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert (found.__doc__ or "").strip()


def test_option_lists_of_docstrings_become_lists() -> None:
    text = 'What.\n\nlease   how long\n        an owner is silent\nkeep    or "*"\n\nEnd.'
    expected = 'What.\n\n* `lease`: how long an owner is silent\n* `keep`: or `"*"`\n\nEnd.'
    assert as_markdown(text) == expected


def test_every_limit_in_the_docs_exists_by_name() -> None:
    """A renamed constant must not leave its old name behind."""
    files = [path for ending in ("*.py", "*.lua") for path in (ROOT / "src").rglob(ending)]
    constant = re.compile(r"^(?:local )?([A-Z][A-Z_]{4,})(?:: Final)? = ", re.M)
    constants = {name for path in files for name in constant.findall(path.read_text())}
    limits = (DOCS / "reference" / "limits.md").read_text()
    missing = set(re.findall(r"`([A-Z][A-Z_]{4,})`", limits)) - constants
    assert missing == set()
