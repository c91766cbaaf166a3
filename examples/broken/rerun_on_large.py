"""Re-run on large: a response that is too large to store is not stored, and its key is forgotten.

What is wrong: a limit on what is stored decides whether an operation has happened.
Where it comes from: middlewares with a limit of 1 MiB (or 400 KB, the size of an item in DynamoDB)
that release the key of a larger response. They could keep the key and say that the body is gone.
What it costs: the operations with the longest answers, exports and batches, run on every retry.
How the verifier shows it: it retries a request whose response has 2 MiB: two effects.
"""

from __future__ import annotations

from examples.broken.guard import Claim, Guard
from starlette.responses import Response

STORED_MAX_BYTES = 1024 * 1024


class RerunOnLarge(Guard):
    def store(self, claim: Claim, response: Response) -> None:
        if len(response.body) > STORED_MAX_BYTES:
            self.release(claim)
        else:
            super().store(claim, response)
