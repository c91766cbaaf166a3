"""In-flight before mismatch: while the first request runs, another body is told to retry.

What is wrong: the state is looked at before the body. "Retry later" is an answer to a duplicate;
this request is none, and will never succeed.
Where it comes from: if status == "in_flight": raise ConflictError, two lines above
if request_hash != body_hash: raise BadRequestError.
What it costs: a client with a bug retries for as long as the first operation runs, as it was told,
and its bug is found later than it could be, or not at all.
How the verifier shows it: it sends another body while the first request runs: 409 instead of 422.
"""

from __future__ import annotations

import sqlite3

from examples.broken.guard import Claim, Conflict, Guard
from starlette.responses import Response


class InFlightBeforeMismatch(Guard):
    def repeat(self, claim: Claim, row: sqlite3.Row) -> Response:
        if row["status"] == "pending":
            raise Conflict("Request already in flight. Retry after 1 s.")
        return super().repeat(claim, row)
