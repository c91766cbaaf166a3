"""The comparison as a page of the documentation, and as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oncekey.verify.verdict import Status, Verdict

_HEAD = """# The verifier on published middlewares

What [`oncekey verify`](../how-to/verify.md) says about Python middlewares that promise what oncekey
promises, each before the same payments API, with an effect counter and two callers. `make
verify-peers` makes this page again. Judge for yourself: the apps are in
`bench/verifier/peer_apps.py`, and what each cell stands on is in [the JSON
file](verified-peers.json) beside this page.

How it is kept fair:

* Each middleware is set up as its own documentation says, keeps its records in memory in one
  process, and gets the verified account as the caller's scope where it knows scopes.
* Statuses on which they differ with reason (409 or 423 while the first request runs, 400 or 422 for
  a malformed key) all count as right, and a key need not be required.
* An effect is a request to the payment provider. A declined card (402) and a provider that does not
  answer (502) have had it, as a real provider would have been asked.
* Three rows have runs of their own, because they need a setting that would change other rows: keys
  that are kept for seconds, a short lease, and an API that sets a cookie.
* Some of what is violated here is documented by the project itself. The first table says so; the
  second says only what was seen.

"""


class PeerFacts(Protocol):
    """What a page says about a peer."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def settings(self) -> str: ...

    @property
    def documents(self) -> str: ...


class RowFacts(Protocol):
    """What a page says in one line."""

    @property
    def title(self) -> str: ...

    @property
    def slug(self) -> str: ...

    @property
    def verdicts(self) -> Mapping[str, Verdict | None]: ...


def page(peers: Sequence[PeerFacts], rows: Sequence[RowFacts], made: str) -> str:
    """Returns the page as Markdown."""
    names = [peer.name for peer in peers]
    lines = [f"Made on {made}.", ""]
    lines += ["| | version | settings | what it says itself |", "|---|---|---|---|"]
    lines += [
        f"| {peer.name} | {peer.version} | {peer.settings} | {peer.documents} |" for peer in peers
    ]
    lines += ["", "## Table", "", f"| guarantee | {' | '.join(names)} |"]
    lines += ["|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [cell(row.verdicts[name]) for name in names]
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    violated = [f"{name}: {_violated(rows, name)} of {len(rows)}" for name in names]
    lines += ["", f"Violated: {'; '.join(violated)}.", "", "## What was seen"]
    for peer in peers:
        lines += ["", f"### {peer.name}", "", *_seen(rows, peer.name)]
    return _HEAD + "\n".join(lines) + "\n"


def _seen(rows: Sequence[RowFacts], name: str) -> list[str]:
    """Returns a line for each guarantee that is violated, or one for all if it is the same."""
    violated = [
        (row.title, verdict)
        for row in rows
        if (verdict := row.verdicts[name]) is not None and verdict.status is Status.VIOLATED
    ]
    faults = {one.fault for _, verdict in violated for one in verdict.violations}
    if not violated:
        return ["Nothing was violated."]
    if len(violated) > 1 and len(faults) == 1:
        return [f"* In all {len(violated)}: {violated[0][1].summary}"]
    return [f"* {title}: {verdict.summary}" for title, verdict in violated]


def cell(verdict: Verdict | None) -> str:
    """Returns a cell: holds, violated with its faults, or why nothing is known."""
    if verdict is None:
        return "not asked"
    if verdict.status is not Status.VIOLATED:
        return verdict.status.value
    faults = list(dict.fromkeys(one.fault.title for one in verdict.violations))
    return f"**violated**: {'; '.join(faults)}"


def written(peers: Sequence[PeerFacts], rows: Sequence[RowFacts], made: str) -> str:
    """Returns the same as JSON, with what each verdict stands on."""
    document = {
        "made": made,
        "peers": [
            {
                "name": peer.name,
                "version": peer.version,
                "settings": peer.settings,
                "documents": peer.documents,
            }
            for peer in peers
        ],
        "guarantees": [
            {
                "slug": row.slug,
                "title": row.title,
                "verdicts": {name: _facts(verdict) for name, verdict in row.verdicts.items()},
            }
            for row in rows
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _facts(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "status": verdict.status.value,
        "summary": verdict.summary,
        "n": verdict.n,
        "window": verdict.window,
        "violations": [
            {
                "fault": one.fault.slug,
                "what": one.what,
                "exchanges": [
                    {
                        "note": exchange.note,
                        "request": f"{exchange.request.method} {exchange.request.path}",
                        "outcome": exchange.outcome(),
                    }
                    for exchange in one.exchanges
                ],
            }
            for one in verdict.violations
        ],
    }


def _violated(rows: Sequence[RowFacts], name: str) -> int:
    verdicts = [row.verdicts[name] for row in rows]
    return sum(one is not None and one.status is Status.VIOLATED for one in verdicts)
