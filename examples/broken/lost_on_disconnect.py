"""Lost on disconnect: if the client has gone, the response is thrown away, and the key with it.

What is wrong: a client that has gone is exactly the one that will come back and ask again.
Where it comes from: "nobody is there to receive it, so there is nothing to cache"; and frameworks
that cancel a handler when its client goes, which no `except Exception` sees.
What it costs: the case that keys are made for. A client whose timeout is shorter than the
operation pays with each of its retries.
How the verifier shows it: it closes the connection while the operation runs, waits, and retries:
two effects.
"""

from __future__ import annotations

from examples.broken.guard import Claim, Guard, Operation
from fastapi import Request
from starlette.responses import Response


class LostOnDisconnect(Guard):
    async def run(self, claim: Claim, request: Request, operation: Operation) -> Response:
        response = await operation()
        if await request.is_disconnected():
            self.release(claim)
        else:
            self.store(claim, response)
        return response
