"""Mismatch destroys the record: a request with another body marks the first one's key as failed.

What is wrong: the error that says "this key was used for another request" is raised inside the
`try` whose `except` is meant for operations that fail. A request that is refused must change
nothing.
Where it comes from: the context manager that raises BadRequestError and ends with "except
ConflictError: raise / except Exception: mark_failed(key)".
What it costs: one retry with a bug in its body, and the stored success is gone. The honest retry
after it is told that the payment failed.
How the verifier shows it: it pays, sends another body with the same key (422, as it should be),
and retries the first body: the answer is no longer the first one.
"""

from __future__ import annotations

from examples.broken.failure_clobbers_success import mark_failed
from examples.broken.guard import Claim, Conflict, Guard, Operation
from fastapi import Request
from starlette.responses import Response


class MismatchDestroysRecord(Guard):
    async def run_or_repeat(self, claim: Claim, request: Request, operation: Operation) -> Response:
        try:
            return await super().run_or_repeat(claim, request, operation)
        except Conflict:
            raise
        except Exception:
            mark_failed(self, claim)
            raise
