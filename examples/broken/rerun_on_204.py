"""Re-run on 204: a response without a body counts as no response.

What is wrong: "is there a stored response?" is asked as "is the stored response true?". An empty
body is not, although the operation has finished.
Where it comes from: if existing and existing["response"]: return existing["response"]. Two
published middlewares do the same by parsing the body as JSON before they store it.
What it costs: every retry of a cancellation, a deletion or a "mark as paid" runs again.
How the verifier shows it: it retries a request that is answered with 204: two effects.
"""

from __future__ import annotations

import sqlite3

from examples.broken.guard import Claim, Guard


class RerunOn204(Guard):
    def claim(self, claim: Claim) -> sqlite3.Row | None:
        row = super().claim(claim)
        finished = row is not None and row["status"] == "finished"
        if row is not None and finished and not row["response_body"]:
            return None
        return row
