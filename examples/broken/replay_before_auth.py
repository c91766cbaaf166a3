"""Replay before authentication: whoever has a key gets the response, with any signature.

What is wrong: the guard stands before the code that verifies the token. It takes the account from
the token as it is written there, finds the stored response, and sends it.
Where it comes from: a middleware runs before the dependencies of a route, and the dependency is
what checks the token. The middleware "only needs a namespace", so it reads the claim without
verifying it.
What it costs: receipts, with names and amounts, for callers whose token is forged, expired or
revoked.
How the verifier shows it: it pays, and sends the same request with a broken token: it gets the
stored response instead of 401.
"""

from __future__ import annotations

import secrets

from examples.broken.guard import Authenticate, Claim, Guard, Operation, Unauthorized
from fastapi import Request
from starlette.responses import Response


class ReplayBeforeAuth(Guard):
    async def respond(
        self, request: Request, authenticate: Authenticate, operation: Operation
    ) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        account = token.partition(".")[0]  # what the token says, not what its signature proves
        claim = Claim(
            scope=self.scope(account),
            key=self.read_key(request),
            request_hash=self.hash_request(request, await request.body()),
            owner=secrets.token_hex(8),
        )
        row = self.find(claim)
        if row is not None:
            return self.repeat(claim, row)
        if authenticate(request) is None:
            raise Unauthorized("Send Authorization: Bearer and a token.")
        return await self.run_or_repeat(claim, request, operation)
