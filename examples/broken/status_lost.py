"""Status lost on replay: only the body was stored, so every replay is a 200.

What is wrong: a response is a status, headers and a body; a column `response JSONB` has room for
one of them.
Where it comes from: "response is JSONB. Store the response object directly", and if status ==
"succeeded": return row["response"], which a framework turns into a 200.
What it costs: a client that looks for 201 takes its own payment for a failure; one that was
declined with 402 reads 200 on its retry and ships the goods.
How the verifier shows it: it compares the status of a replay with the first one.
"""

from __future__ import annotations

import sqlite3

from examples.broken.guard import Guard
from starlette.responses import Response


class StatusLost(Guard):
    def replay(self, row: sqlite3.Row) -> Response:
        response = super().replay(row)
        response.status_code = 200
        return response
