"""Writes docs/reference/verify.md from the verifier's own guarantees, faults and file keys."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from oncekey.verify.observability import NEEDS
from oncekey.verify.remedies import REMEDIES
from oncekey.verify.target_file import FILE_KEYS
from oncekey.verify.verdict import Fault, Guarantee

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "verify.md"

INTRODUCTION = """\
# What verify checks

Generated from the verifier's own texts by `make docs`; do not edit. How to use it:
[verify any API](../how-to/verify.md). Its options: [the command line](command-line.md#verify).

## Guarantees

Each gets one verdict: **holds** (with the number of requests and the window that was hit),
**violated** (with the exchanges), or **not observable** (with what to give so that it is). `--only`
and `--skip` take the names, which never change.

"""

FAULTS = """\
## Faults

A violation names the most specific fault that its exchanges show. The names never change.

"""

FILE = """\
## The file

`oncekey verify --config FILE` reads TOML. Options win over it. `$NAME` in the value of a header or
in the URL of a database is read from the environment (`$$` is a dollar); bodies are sent as they
are. `{{unique}}`, `{{number}}` and `{{key}}` in paths, headers and bodies get new values for each
operation.

"""

DATA = """\
## The data

`--json` prints one document. Members may be added to it; none is renamed or removed without a new
`format`.

| member | meaning |
|---|---|
| `format` | 1 |
| `url`, `method`, `profile` | what was verified, and by which profile |
| `effects` | how effects were counted; null if they were not |
| `began_at`, `seconds`, `requests` | when, how long, and how many requests were sent |
| `violated` | true if a guarantee is violated |
| `counts` | how many guarantees hold, are violated, are not observable |
| `guarantees` | a list of objects, below |

| of a guarantee | meaning |
|---|---|
| `guarantee`, `title`, `status` | name, meaning, and `holds`, `violated` or `not observable` |
| `summary`, `n`, `window` | what was seen, in how many requests, in which dangerous moment |
| `advice`, `unseen` | how to observe it; parts of it that were not seen |
| `requests`, `seconds` | what was sent for it, and how long it took |
| `violations` | a list of `fault`, `title`, `cause`, `mend`, `what` and `exchanges` |

| of an exchange | meaning |
|---|---|
| `curl`, `note` | the request as a command, and what it was for |
| `count`, `together` | how many equal requests it stands for, and whether they were sent together |
| `at` | seconds after the first exchange of the violation |
| `answers` | a list of `outcome`, `status`, `headers`, `body` (its beginning) and `count` |

If the first request fails, there is `not_begun` with the reason, and `request`. With `--dry-run`
there is `dry_run`, and nothing was sent.

A JUnit file has one test case per guarantee: violated is a failure whose `type` is the fault, not
observable is skipped, or with `--strict` a failure. If the first request fails, it has one test
case, `first-request`, with an error.
"""

# Table -> key -> what it says.
MEANINGS = {
    "": {
        "url": "where the main request is sent; `URL` on the command line",
        "profile": "`ietf` (by default), `stripe` or `oncekey`",
        "key_header": "the name of the key's header; `Idempotency-Key` by default",
        "quoted_key": "true sends keys in quotes, as the IETF draft writes them",
        "keep": 'how long a key is remembered, such as `"10s"`, if it is short enough to wait for',
        "slow": "about how long the handler of the slow variant works",
        "only": "a list of guarantees; the others are left out",
        "skip": "a list of guarantees that are left out",
        "request": "a table, below",
        "callers": "a table, below",
        "variants": "tables, below",
        "effects": "a table, below",
        "limits": "a table, below",
        "openapi": "a table, below; it takes the place of `request`",
    },
    "request": {
        "method": "`POST` by default",
        "headers": "names and values; a list gives several lines of one name",
        "body": "a text",
        "json": "the body as TOML, sent as JSON",
        "body_file": "a file beside this one whose text is the body",
    },
    "callers": {
        "main": 'headers that say who calls, such as `{ Authorization = "Bearer $TOKEN" }`',
        "other": "the same for somebody else, with rights of its own",
        "bad": "credentials that must be refused; without it they are made from `main`",
    },
    "variants": {
        "other-body": "asks for something else; without it, one is made from the main request",
        "other-path": "goes to another path that takes keys too",
        "slow": "has a handler that works for seconds",
        "slow-failing": "works for seconds, and then fails",
        "rejected": "is refused by the handler with a 4xx, such as a declined card",
        "failing": "fails with a 5xx, with or without its effect",
        "no-content": "is answered with 204",
        "large": "is answered with a large body",
    },
    "variants.*": {
        "method": "that of the main request, unless it is given",
        "path": "likewise",
        "headers": "likewise",
        "body": "likewise",
        "json": "instead of `body`",
        "body_file": "instead of `body`",
    },
    "effects": {
        "url": "a URL, or a path of the same API, that is asked by GET for JSON",
        "path": "where the number or list is in it: `$.total`, `$.data.charges`, `$.shops[*].id`",
        "match": "only elements of the list that contain this text count, such as `{{unique}}`",
        "headers": "for that URL; otherwise those of the main caller, if it is the same host",
        "command": "a list: a program and its arguments; it prints a number, and has "
        "`ONCEKEY_VERIFY_UNIQUE`, `_NUMBER` and `_KEY` in its environment",
        "sql": "a query that gives one number; `:unique`, `:number` and `:key` are bound",
        "database": "`sqlite:///file` or `postgresql://...`, opened read-only",
        "ids": "places of ids in responses: `$.id`, `header:Location`; without a table the usual",
    },
    "openapi": {
        "document": "a file or a URL: [how](../how-to/verify-openapi.md)",
        "operation": "an `operationId`, or a method and a path: `POST /charges`",
        "path_parameters": "values of the path's parameters that no generator can know",
        "fields": "members of the JSON body with the values they are to have",
    },
    "limits": {
        "requests": "how many requests are sent at most",
        "concurrency": "how many of them at once",
        "timeout": "how long a response may take",
        "patience": "how long a request is retried until its operation has an outcome",
        "total": "how long everything may take",
    },
}


def page() -> str:
    return "\n".join([INTRODUCTION + _guarantees(), FAULTS + _faults(), FILE + _file(), DATA])


def _guarantees() -> str:
    rows = ["| guarantee | what it says | needs |", "|---|---|---|"]
    for guarantee in Guarantee:
        need = NEEDS.get(guarantee)
        option = "" if need is None else need.advice.partition(": ")[2]
        rows.append(f"| `{guarantee.slug}` | {guarantee.title} | {_code(option)} |")
    return "\n".join(rows) + "\n"


def _code(option: str) -> str:
    return " or ".join(f"`{part}`" for part in option.split(", or ") if part)


def _faults() -> str:
    rows = ["| fault | what is wrong | because | mend |", "|---|---|---|---|"]
    for fault in Fault:
        cells = (f"`{fault.slug}`", fault.title, fault.cause, REMEDIES[fault])
        rows.append(f"| {' | '.join(_cells(cells))} |")
    return "\n".join(rows) + "\n"


def _cells(texts: Iterable[str]) -> list[str]:
    return [text.replace("|", "\\|") for text in texts]


def _file() -> str:
    parts = []
    for table, keys in FILE_KEYS.items():
        title = f"`[{table}]`" if table else "The top of the file"
        rows = [f"### {title}", "", "| key | meaning |", "|---|---|"]
        rows += [f"| `{key}` | {MEANINGS[table][key]} |" for key in keys]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
