"""The pages on queues say what the code does: the table of dispositions, headers and limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncekey.queues import disposition, redrive
from oncekey.queues.disposition import Kind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/queues.md").read_text()
LIMITS = (ROOT / "docs/reference/limits.md").read_text()


def rows_of(text: str, heading: str) -> list[tuple[str, str]]:
    """The rows of the table below a heading, without marks of code."""
    part = text.partition(heading)[2].partition("\n\n**")[0].partition("\n#")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", part.replace("`", ""), re.M)
    return [row for row in rows if set(row[0]) != {"-"}][1:]


def test_the_table_of_dispositions_is_that_of_the_code() -> None:
    lines = (disposition.__doc__ or "").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.strip().startswith("---"))
    rows = []
    for line in lines[begin + 1 :]:
        if not line.strip():
            break
        left, _, right = line.strip().partition("  ")
        rows.append((left, right.strip()))
    assert rows_of(PAGE, "## What becomes of a message") == rows
    named = {word for _, right in rows for word in re.findall(r"[A-Z_]{4,}", right)}
    assert named == set(Kind.__members__)


BROKER_PAGES = ("sqs", "kafka", "rabbitmq", "redis-streams", "celery")
SECTIONS = (
    "The key",
    "Retries and dead letters",
    "Redrive",
    "What is checked at the start",
    "What this is proven on",
    "Limits",
)


@pytest.mark.parametrize("name", BROKER_PAGES)
def test_the_pages_of_brokers_have_the_same_sections_in_the_same_order(name: str) -> None:
    page = (ROOT / f"docs/how-to/queues-{name}.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.M)
    assert "pip install 'oncekey[" in page.partition("\n## ")[0]
    assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)


def test_the_headers_of_dead_letters_are_on_the_page() -> None:
    for header in redrive.HEADERS:
        assert f"`{header}" in PAGE, header


def test_every_limit_of_queues_is_in_the_reference() -> None:
    """Constants with a public name that are numbers or durations."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "src/oncekey/queues").rglob("*.py"))
        for name in re.findall(
            r"^([A-Z][A-Z_]+(?:_MAX|_MIN|_DEFAULT|_S|_US|_PART|_CHARS|_BYTES|_PER_LEASE))"
            r"(?:: Final)? = ",
            path.read_text(),
            re.M,
        )
        if f"`{name}`" not in LIMITS
    ]
    assert missing == []
