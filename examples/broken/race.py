"""Check-then-act: the key is looked up before the operation and stored after it.

What is wrong: nothing is written before the money moves. Two requests that come together both find
no row, and both pay; the second INSERT fails quietly, after the damage.
Where it comes from: the first version of nearly every guide: SELECT, run, INSERT.
What it costs: a charge per impatient click, and per retry of a client whose timeout is shorter than
the provider's answer.
How the verifier shows it: it holds back the last byte of 2, 20 and 100 equal requests and releases
them together; more than one effect, and responses with different ids.
"""

from __future__ import annotations

import json
import sqlite3

from examples.broken.guard import Claim, Guard
from starlette.responses import Response


class Race(Guard):
    def claim(self, claim: Claim) -> sqlite3.Row | None:
        return self.find(claim)  # "Check for a prior successful run", and take nothing

    def store(self, claim: Claim, response: Response) -> None:
        self.db.execute(
            "INSERT OR IGNORE INTO idempotency_keys VALUES (?, ?, ?, ?, 'finished', ?, ?, ?, ?)",
            (
                claim.scope,
                claim.key,
                claim.request_hash,
                claim.owner,
                response.status_code,
                json.dumps(self.stored_headers(response)),
                bytes(response.body),
                self.now(),
            ),
        )
