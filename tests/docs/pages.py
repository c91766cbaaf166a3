"""The pages of the documentation as the tests read them: their code, files, links and headings."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), ROOT / "tests" / "README.md"])
PAGES = [page for page in PAGES if page.exists()]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)
_FILE_NAME = re.compile(r"# ([\w./-]+\.py)\n")
_INLINE_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LINK_DEFINITION = re.compile(r"^\[[^\]]+\]: (\S+)$", re.M)
_HEADING = re.compile(r"^#+ (.+)$", re.M)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The text of the page's code blocks in one language, in order."""
    return [code for found, code in _BLOCK.findall(page.read_text()) if found == language]


def script(page: Path) -> str:
    """The page's Python from top to bottom, without the blocks that are files of their own."""
    return "\n".join(code for code in blocks(page, "python") if not _FILE_NAME.match(code))


def files(page: Path) -> dict[str, str]:
    """The blocks that name a file in their first line (`# shop/settings.py`), by that name."""
    named = [(_FILE_NAME.match(code), code) for code in blocks(page, "python")]
    return {found[1]: code for found, code in named if found}


def commands(page: Path) -> list[list[str]]:
    """The lines `python manage.py ...` of the page's shell blocks, as arguments of Python."""
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [line.split()[1:] for line in lines if line.startswith("python manage.py ")]


def links(page: Path) -> list[str]:
    """Where the page's links lead, those in code left out."""
    text = _BLOCK.sub("", page.read_text())
    return [*_INLINE_LINK.findall(text), *_LINK_DEFINITION.findall(text)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that a code host and the site give to the page's headings."""
    headings = _HEADING.findall(_BLOCK.sub("", page.read_text()))
    plain = [re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings]
    return frozenset(re.sub(r"\s", "-", heading.strip()) for heading in plain)
