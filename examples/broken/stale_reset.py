"""Unfenced stale reset: a key that has been pending for long is given to the next request.

What is wrong: "the original request is almost certainly dead" is a guess, and nobody asks it. It
may be slow. The reset leaves no trace of the new owner, so both finish, and the later one
overwrites.
Where it comes from: "Recovering from stuck-pending keys": UPDATE ... SET created_at = now() WHERE
status = 'pending' AND created_at < now() - INTERVAL '30 seconds', with the 99th percentile of the
duration as the limit. By definition that runs one healthy request in a hundred a second time.
What it costs: on a day when the provider is slow, every retry is a second charge.
How the verifier shows it: it sends a request that takes longer than the limit, and retries while
it runs: two effects. The limit is 1 second here, so that nobody waits for half a minute.
"""

from __future__ import annotations

import json
import sqlite3

from examples.broken.guard import Claim, Guard
from starlette.responses import Response

STALE_SECONDS = 1.0


class StaleReset(Guard):
    def claim(self, claim: Claim) -> sqlite3.Row | None:
        row = super().claim(claim)
        if row is None or row["request_hash"] != claim.request_hash:
            return row
        now = self.now()
        reset = self.db.execute(
            """
            UPDATE idempotency_keys SET created_at = ?
            WHERE scope = ? AND key = ? AND status = 'pending' AND created_at < ?
            """,
            (now, claim.scope, claim.key, now - STALE_SECONDS),
        )
        return None if reset.rowcount else row  # "Treat the next request as a fresh claim"

    def store(self, claim: Claim, response: Response) -> None:
        self.db.execute(
            """
            UPDATE idempotency_keys
            SET status = 'finished', response_status = ?, response_headers = ?, response_body = ?
            WHERE scope = ? AND key = ?
            """,
            (
                response.status_code,
                json.dumps(self.stored_headers(response)),
                bytes(response.body),
                claim.scope,
                claim.key,
            ),
        )
