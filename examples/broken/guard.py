"""A guard against duplicates that is right: what the servers of this folder break, one line each.

It is what the tutorials teach, without their mistakes. In this order:

1. Who calls? A token that is not genuine gets 401, whatever its key was used for.
2. Which key? One header line, 1 to 255 visible characters, in quotes or not; else 400.
3. Claim the key, by an INSERT that only one request can win.
4. Lost? Another request than the first: 422. The first still runs: 409. Else: its response.
5. Won? Run the operation, store the whole response, answer.

There is no lease. Records live in the memory of the process that runs the operations, so an owner
that is gone has taken its record with it. With a real database a claim needs a lease, a heartbeat
and a fence, and there are more ways to be wrong: see the documentation of oncekey.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from fastapi import Request
from starlette.responses import JSONResponse, Response

KEEP_SECONDS = 24 * 3600
NEVER_STORED = {"set-cookie", "content-length", "date"}

_SCHEMA = """
    CREATE TABLE idempotency_keys (
        scope            TEXT NOT NULL,
        key              TEXT NOT NULL,
        request_hash     TEXT NOT NULL,
        owner            TEXT NOT NULL,
        status           TEXT NOT NULL DEFAULT 'pending',  -- pending | finished
        response_status  INTEGER,
        response_headers TEXT,
        response_body    BLOB,
        created_at       REAL NOT NULL,
        PRIMARY KEY (scope, key)
    )
"""
# A String of RFC 9651, or the same key without its quotes.
_KEY = re.compile(r'"(?P<quoted>[ !#-\[\]-~]{1,255})"|(?P<bare>[!#-+\--:<-~]{1,255})')

Operation = Callable[[], Awaitable[Response]]
Authenticate = Callable[[Request], str | None]


class Refused(Exception):
    """A request that is not run and has no stored response. Subclasses say why."""

    status = 400
    headers: ClassVar[dict[str, str]] = {}


class BadKey(Refused):
    """The header with the key is missing, or it is not one key."""


class Unauthorized(Refused):
    """Nobody knows the caller."""

    status = 401


class Conflict(Refused):
    """The first request with this key still runs."""

    status = 409
    headers: ClassVar[dict[str, str]] = {"Retry-After": "1"}


class Mismatch(Refused):
    """The key was used for another request."""

    status = 422


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's wish to run: under which key, for what, and in whose name."""

    scope: str
    key: str
    request_hash: str
    owner: str


class Guard:
    """Runs an operation once per caller and key, and answers each retry with the same response."""

    # Whether the operation's own commit comes after its response is stored.
    is_inside_the_transaction: ClassVar[bool] = False

    def __init__(
        self, now: Callable[[], float] = time.monotonic, keep_seconds: float = KEEP_SECONDS
    ) -> None:
        self.now = now
        self.keep_seconds = keep_seconds
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.db.row_factory = sqlite3.Row
        self.db.execute(_SCHEMA)

    async def respond(
        self, request: Request, authenticate: Authenticate, operation: Operation
    ) -> Response:
        account = authenticate(request)
        if account is None:
            raise Unauthorized("Send Authorization: Bearer and a token.")
        claim = Claim(
            scope=self.scope(account),
            key=self.read_key(request),
            request_hash=self.hash_request(request, await request.body()),
            owner=secrets.token_hex(8),
        )
        return await self.run_or_repeat(claim, request, operation)

    def scope(self, account: str) -> str:
        """Keys are names that callers choose, so each caller has its own."""
        return account

    def read_key(self, request: Request) -> str:
        lines = request.headers.getlist("idempotency-key")
        if len(lines) != 1:
            raise BadKey(f"Send one Idempotency-Key; {len(lines)} came.")
        found = _KEY.fullmatch(lines[0])
        if found is None:
            raise BadKey("Send an Idempotency-Key of 1 to 255 visible characters.")
        return found["quoted"] or found["bare"]

    def hash_request(self, request: Request, body: bytes) -> str:
        whole = [request.method, request.url.path, request.url.query, body.decode("latin-1")]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()

    async def run_or_repeat(self, claim: Claim, request: Request, operation: Operation) -> Response:
        row = self.claim(claim)
        if row is None:
            return await self.run(claim, request, operation)
        return self.repeat(claim, row)

    def claim(self, claim: Claim) -> sqlite3.Row | None:
        """Takes the key and returns None, or returns the row of whoever has it."""
        self.db.execute(
            "DELETE FROM idempotency_keys WHERE status = 'finished' AND created_at < ?",
            (self.now() - self.keep_seconds,),
        )
        inserted = self.db.execute(
            """
            INSERT INTO idempotency_keys (scope, key, request_hash, owner, created_at)
            VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (scope, key) DO NOTHING
            """,
            (claim.scope, claim.key, claim.request_hash, claim.owner, self.now()),
        )
        return None if inserted.rowcount else self.find(claim)

    def find(self, claim: Claim) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.db.execute(
            "SELECT * FROM idempotency_keys WHERE scope = ? AND key = ?", (claim.scope, claim.key)
        ).fetchone()
        return row

    def repeat(self, claim: Claim, row: sqlite3.Row) -> Response:
        """The answer to a request whose key is taken."""
        if row["request_hash"] != claim.request_hash:
            raise Mismatch("This key was used for another request. Take a new key.")
        if row["status"] == "pending":
            raise Conflict("The first request with this key still runs. Retry later.")
        return self.replay(row)

    async def run(self, claim: Claim, request: Request, operation: Operation) -> Response:
        try:
            response = await operation()
        except Exception:
            # Nobody knows how far it came, so it is final: a second run might pay twice.
            response = JSONResponse({"error": "the payment failed"}, 500)
        self.store(claim, response)
        return response

    def store(self, claim: Claim, response: Response) -> None:
        self.db.execute(
            """
            UPDATE idempotency_keys
            SET status = 'finished', response_status = ?, response_headers = ?, response_body = ?
            WHERE scope = ? AND key = ? AND owner = ? AND status = 'pending'
            """,
            (
                response.status_code,
                json.dumps(self.stored_headers(response)),
                bytes(response.body),
                claim.scope,
                claim.key,
                claim.owner,
            ),
        )

    def stored_headers(self, response: Response) -> list[tuple[str, str]]:
        """A cookie is for the one who got it first, and the rest is made anew."""
        return [item for item in response.headers.items() if item[0] not in NEVER_STORED]

    def release(self, claim: Claim) -> None:
        """Forgets a key; the next request with it runs."""
        self.db.execute(
            "DELETE FROM idempotency_keys WHERE scope = ? AND key = ? AND owner = ?",
            (claim.scope, claim.key, claim.owner),
        )

    def replay(self, row: sqlite3.Row) -> Response:
        response = Response(row["response_body"], row["response_status"])
        for name, value in json.loads(row["response_headers"]):
            response.headers.append(name, value)
        response.headers["X-Idempotency-Replayed"] = "true"
        return response


def refusal(error: Refused) -> Response:
    """A refusal as RFC 9457 has it."""
    kind = type(error).__name__.lower()
    problem = {"type": f"urn:problem:{kind}", "status": error.status, "detail": str(error)}
    return JSONResponse(problem, error.status, error.headers, media_type="application/problem+json")
