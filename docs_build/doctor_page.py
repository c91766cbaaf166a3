"""Writes docs/reference/doctor.md from the checks' own texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from oncekey.doctor.diagnosis import COMMON_CHECKS
from oncekey.stores import etcd, postgres, redis, sqlite
from oncekey.stores.inspection import Check

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "doctor.md"

INTRODUCTION = """\
# What doctor checks

Generated from the checks' own texts by `make docs`; do not edit. How to use it:
[find out what would break](../how-to/doctor.md).

`oncekey doctor URL` reads the store, and nothing is created, migrated or changed. Each finding
has a name that never changes, a severity, what was found, why it matters, and how to mend it.

| severity | meaning | exit code |
|---|---|---|
| `ok` | it was checked, and it is as it should be | 0 |
| `info` | it was not checked, or somebody should know of it; nothing is wrong | 0 |
| `warning` | it works now, and will hurt under a condition | 0; 4 with `--strict` |
| `broken` | the guarantee does not hold, or nothing works | 4 |

Exit code 1 means that the store did not answer, 2 that the command was written wrongly.

## The data

`--json` prints one document. Members may be added to it; none is renamed or removed without a new
`format`.

| member | meaning |
|---|---|
| `format` | 1 |
| `store` | the URL, without its password |
| `healthy` | false if the exit code is 4 |
| `worst` | the worst severity that occurs |
| `counts` | how many findings there are of each severity |
| `findings` | a list: `check`, `severity`, `what`, `why`, and `mend`, empty if all is well |
"""

SECTIONS = {
    "postgres": "PostgreSQL",
    "sqlite": "SQLite",
    "redis": "Redis and Valkey",
    "etcd": "etcd",
    "store": "Any store, and what its newest records tell",
    "app": "The app, with `--app`",
    "proxy": "Proxies, with `--proxy-config`",
}


def all_checks() -> tuple[Check, ...]:
    return (
        *postgres.CHECKS,
        *sqlite.CHECKS,
        *redis.CHECKS,
        *etcd.CHECKS,
        *COMMON_CHECKS,
    )


def page() -> str:
    parts = [INTRODUCTION]
    for subject, title in SECTIONS.items():
        checks = [check for check in all_checks() if check.name.startswith(f"{subject}.")]
        parts.append("\n".join([f"## {title}", "", *_rows(checks), ""]))
    return "\n".join(parts).rstrip() + "\n"


def _rows(checks: Iterable[Check]) -> list[str]:
    rows = ["| check | looks at | because | mend |", "|---|---|---|---|"]
    for check in checks:
        texts = (_cell(text) for text in check[1:])
        rows.append(f"| `{check.name}` | {' | '.join(texts)} |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*_", "\\*_").replace("<", "&lt;")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
