"""Failure clobbers success: whoever fails marks the key as failed, also if somebody else pays.

What is wrong: the UPDATE in the `except` says WHERE key, not whose key. A duplicate that was only
turned away because the first request still runs marks that request's key as failed; the success,
which comes a moment later, finds nothing pending to write to.
Where it comes from: "except Exception: UPDATE idempotency_keys SET status = 'failed' WHERE key =
$1" around everything, the look-up of duplicates included.
What it costs: the customer has paid and has a receipt, and every retry says that the payment
failed. The next thing a client does is to pay again, with a new key.
How the verifier shows it: it sends a duplicate while the first request runs, waits for the first
one's success, and retries: the answer is a failure.
"""

from __future__ import annotations

from examples.broken.guard import Claim, Guard, Mismatch, Operation
from fastapi import Request
from starlette.responses import Response


class FailureClobbersSuccess(Guard):
    async def run_or_repeat(self, claim: Claim, request: Request, operation: Operation) -> Response:
        try:
            return await super().run_or_repeat(claim, request, operation)
        except Mismatch:
            raise
        except Exception:
            mark_failed(self, claim)
            raise


def mark_failed(guard: Guard, claim: Claim) -> None:
    guard.db.execute(
        """
        UPDATE idempotency_keys
        SET status = 'finished', response_status = 500, response_headers = '[]',
            response_body = 'the payment failed'
        WHERE scope = ? AND key = ?
        """,
        (claim.scope, claim.key),
    )
