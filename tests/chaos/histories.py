"""Histories made by hand, for tests of the rules: a good one, and what to change in it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.chaos.chaos_history import Event
from tests.support.chaos.invariant_rules import Violation, check
from tests.support.chaos.operation_history import read_history

KEY = "1-000001"
SCOPE = "acct_1"
ID = f"{SCOPE}/{KEY}"
TAG = "0123456789ab"
FENCE = 1_000


class HandMade:
    """The history of one operation that was answered and replayed, to be changed by a test.

    Each method appends events; times are given in seconds, and a request has a number.
    """

    def __init__(self, level: str = "once", id: str = ID) -> None:
        self.level = level
        self.id = id
        self.events: list[Event] = [{"at": 0.0, "kind": "plan", "options": {"seed": 1}}]

    def add(self, at: float, kind: str, **fields: Any) -> HandMade:
        self.events.append({"at": at, "kind": kind, **fields})
        return self

    def answer(self, effect: str = "e-1", id: str = "") -> str:
        told = {"effect": effect, "id": id or self.id, "account": (id or self.id).split("/")[0]}
        return json.dumps(told)

    def send(self, at: float, n: int, variant: str = "same", worker: int = 0) -> HandMade:
        fields = {"id": self.id, "n": n, "variant": variant, "worker": worker}
        return self.add(at, "send", level=self.level, **fields)

    def reply(
        self,
        at: float,
        n: int,
        status: int = 201,
        *,
        code: str = "",
        body: str | None = None,
        replayed: bool = False,
        variant: str = "same",
    ) -> HandMade:
        text = (self.answer() if status == 201 else "") if body is None else body
        told = {"status": status, "code": code, "body": text, "replayed": replayed}
        return self.add(at, "reply", id=self.id, n=n, variant=variant, **told)

    def engine(self, at: float, what: str, fence: int = FENCE, attempt: int = 1) -> HandMade:
        told = {"what": what, "tag": TAG, "fence": fence, "attempt": attempt, "by": "worker-0"}
        return self.add(at, "event", **told)

    def body(self, begin: float, end: float, fence: int = FENCE, attempt: int = 1) -> HandMade:
        told = {"id": self.id, "fence": fence, "by": "worker-0"}
        self.add(begin, "begin", attempt=attempt, **told)
        self.add(end, "hold", lost=False, **told)
        return self.add(end, "end", effect="e-1", **told)

    def effect(self, at: float, effect: str = "e-1", fence: int = FENCE) -> HandMade:
        told = {"id": effect, "child": "c", "id_of": self.id, "fence": fence, "by": "worker-0"}
        return self.add(at, "effect", **told)

    def row(self, run: str = "e-1") -> HandMade:
        return self.add(200.0, "row", id=self.id, run=run, cents=1)

    def unprotected(self, at: float, until: float, store: str = "database") -> HandMade:
        return self.add(at, "unprotected", until=until, store=store)

    def fault(self, at: float, until: float, what: str, target: str) -> HandMade:
        told = {"until": until, "what": what, "target": target, "number": 1, "amount": 1}
        return self.add(at, "fault", **told)

    def record(
        self, state: int = 2, fence: int = FENCE, body: str | None = None, status: int = 201
    ) -> HandMade:
        scope, _, key = self.id.rpartition("/")
        told = {"operation": "shipping" if self.level == "queue" else "http", "scope": scope}
        text = self.answer() if body is None else body
        told |= {"key": key, "note": "", "body": f'http2{{"status":{status}}}\n{text}'}
        return self.add(
            200.0, "record", record=TAG + "0" * 20, state=state, fence=fence, attempt=1, **told
        )

    def finished(self, *, complete: bool = True, past: int = 0) -> HandMade:
        self.add(100.0, "healed")
        return self.add(200.0, "run ended", complete=complete, past_generations=past)

    def violations(self) -> list[Violation]:
        events = sorted(self.events, key=lambda event: event["at"])
        return check(read_history(events))

    def violated(self) -> set[str]:
        return {violation.invariant for violation in self.violations()}


def answered(level: str = "once") -> HandMade:
    """One operation whose first answer came at 1.2 s, and a replay at 5.1 s; nothing is wrong."""
    made = HandMade(level)
    made.send(1.0, 1).engine(1.05, "claimed").body(1.06, 1.15).effect(1.1)
    made.engine(1.16, "finished").reply(1.2, 1)
    return made.send(5.0, 2).reply(5.1, 2, replayed=True)
