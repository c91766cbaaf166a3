"""The docs cannot rot: their code runs, their links lead somewhere, the drawing is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.postgres_stores import server

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name != "CHANGELOG.md"
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# What newcomers run first, and then again: on the file that the first run has left behind.
RUN_TWICE = ("README.md", "docs/tutorial/first-operation.md")
WITH_CODE = [path for path in PAGES if BLOCK.search(path.read_text())]


def test_there_is_code_to_run() -> None:
    assert {"README.md", "docs/tutorial/first-operation.md"} <= {_name(p) for p in WITH_CODE}


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Top to bottom in one process, in an empty folder, warnings being errors."""
    script = tmp_path / "page.py"
    code = "\n".join(BLOCK.findall(page.read_text()))
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if "DATABASE_URL" in code:
        environment["DATABASE_URL"] = server().create_database(f"docs-{page.stem}")
    for _ in range(2 if _name(page) in RUN_TWICE else 1):
        done = subprocess.run(
            [sys.executable, "-W", "error", script.name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert _name(page) not in RUN_TWICE or done.stderr == "", "nothing to be alarmed by"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{_name(page)} links to {target}"


def test_the_state_diagram_is_drawn_from_the_table() -> None:
    script = ROOT / "docs" / "draw_machine.py"
    done = subprocess.run([sys.executable, str(script), "--check"], timeout=60)
    assert done.returncode == 0, "run `make docs`: docs/explanation/state-machine.md is outdated"


def test_every_limit_in_the_docs_exists_by_name() -> None:
    """A renamed constant must not leave its old name behind."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    limits = (ROOT / "docs/reference/limits.md").read_text()
    for name in re.findall(r"`([A-Z][A-Z_]{4,})`", limits):
        assert f"\n{name} = " in source or f"\n{name}: Final = " in source, name
