"""A payments API with accounts, paths and key syntax, whose guard is right; tests break one thing.

It runs in the event loop of the test. Its handlers wait for what clients do, not for time.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self
from unittest.mock import patch

import h11

from oncekey.verify.probe import Limits, Probe
from oncekey.verify.probes import known_outcome
from oncekey.verify.profile import IETF, Profile
from oncekey.verify.raw_connection import Origin
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Caller, Operation, RequestTemplate, Target, Variant
from oncekey.verify.verdict import Fault, Status, Verdict
from oncekey.verify.verification import verify

HOST = "127.0.0.1"
TOKENS = {"Bearer alice-4711": "alice", "Bearer bob-4712": "bob"}
ALICE, BOB = (Caller(name, (("Authorization", token),)) for token, name in TOKENS.items())
# A slow request ends when another one with its key was answered; it has this lead.
SLOW_SECONDS = 0.4
# Probes are patient, so that a busy machine ends no wait that is to succeed.
LIMITS = Limits(timeout=60.0)
SOON = 0.3  # a probe gives a server up that never has an answer


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    token: str
    key_lines: tuple[bytes, ...]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """A request that is neither run nor replayed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.reply = Reply(status, why.encode())


@dataclass
class Record:
    fingerprint: object
    reply: Reply | None = None


class GuardedAPI:
    """The API. Whatever has no underscore may be overridden by a server with a fault."""

    patience: ClassVar = LIMITS.patience  # of its probes

    def __init__(self) -> None:
        self.records: dict[object, Record] = {}
        self.effects: Counter[str] = Counter()
        self._answered: Counter[bytes] = Counter()
        self._waited: set[bytes] = set()
        self._changed = asyncio.Condition()
        self._listening: asyncio.Server | None = None

    # --- the guard ------------------------------------------------------------------------------

    async def respond(self, asked: Asked) -> Reply:
        account = self.account(asked)
        key = self.key(asked.key_lines)
        return await self.guard(account, key, asked)

    def account(self, asked: Asked) -> str:
        if asked.token not in TOKENS:
            raise Refused(401, "unknown caller")
        return TOKENS[asked.token]

    def key(self, lines: Sequence[bytes]) -> bytes:
        if len(lines) != 1:
            raise Refused(400, "send one key")
        return self.valid_key(lines[0])

    def valid_key(self, line: bytes) -> bytes:
        line = line.strip(b'"')
        if not 1 <= len(line) <= 255 or not line.isascii():
            raise Refused(400, "send a key of 1 to 255 characters")
        return line

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        place = self.place(account, key, asked)
        record = self.records.get(place)
        if record is None:
            return await self.run(place, asked)
        if record.fingerprint != self.fingerprint(account, asked):
            return self.mismatch(place)
        if record.reply is None:
            return await self.in_flight(record)
        return self.replay(record.reply)

    def place(self, account: str, key: bytes, asked: Asked) -> object:
        """Return what a record is stored under."""
        return account, key

    def fingerprint(self, account: str, asked: Asked) -> object:
        return asked.path, asked.body

    async def run(self, place: object, asked: Asked) -> Reply:
        record = self.records[place] = Record(self.fingerprint(self.account(asked), asked))
        reply = await self.operate(asked)
        self.store(place, record, reply)
        return reply

    def store(self, place: object, record: Record, reply: Reply) -> None:
        record.reply = record.reply or reply

    def mismatch(self, place: object) -> Reply:
        return Reply(422, b"this key was used for another request")

    async def in_flight(self, record: Record) -> Reply:
        return Reply(409, b"in flight")

    def replay(self, reply: Reply) -> Reply:
        kept = tuple(line for line in reply.headers if line[0] != "Set-Cookie")
        return replace(reply, headers=(*kept, ("X-Idempotency-Replayed", "true")))

    # --- the handler ----------------------------------------------------------------------------

    async def operate(self, asked: Asked) -> Reply:
        kind = asked.fields.get("kind")
        if kind == "rejected":
            return Reply(402, b"the card was declined")
        self.effects[asked.fields["order"]] += 1
        number = self.effects.total()
        if kind == "failing":
            return Reply(502, b"the provider did not answer")
        if kind == "slow":
            await self.meanwhile(asked)
        return self.success(asked, number)

    async def meanwhile(self, asked: Asked) -> None:
        """Wait until another request with the same key was answered; only the first one waits."""
        (key,) = asked.key_lines
        if key in self._waited:
            return
        self._waited.add(key)
        async with self._changed:
            await self._changed.wait_for(lambda: self._answered[key] > 0)

    def success(self, asked: Asked, number: int) -> Reply:
        body = json.dumps({"id": f"payment-{number}", "path": asked.path}).encode()
        headers = (
            ("Content-Type", "application/json"),
            ("Location", f"/payments/{number}"),
            ("Set-Cookie", f"session={number}; HttpOnly"),
        )
        return Reply(201, body, headers)

    # --- the socket -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, HOST, 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listening is not None
        self._listening.close()

    @property
    def origin(self) -> Origin:
        assert self._listening is not None
        return Origin("http", HOST, self._listening.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            parser = h11.Connection(h11.SERVER)
            asked = await _read(parser, reader)
            try:
                reply = await self.respond(asked)
            except Refused as refused:
                reply = refused.reply
            writer.write(_serialized(parser, reply))
            await writer.drain()
            async with self._changed:
                self._answered.update(asked.key_lines)
                self._changed.notify_all()
        except OSError:
            pass  # the client has left
        finally:
            writer.close()


async def _read(parser: h11.Connection, reader: asyncio.StreamReader) -> Asked:
    asked = Asked("", "", (), b"")
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            if not data:
                raise OSError("the client has left")
            parser.receive_data(data)
        elif isinstance(event, h11.Request):
            lines = [value for name, value in event.headers if name == b"idempotency-key"]
            token = dict(event.headers).get(b"authorization", b"").decode()
            asked = replace(asked, path=event.target.decode(), token=token, key_lines=tuple(lines))
        elif isinstance(event, h11.Data):
            asked = replace(asked, body=asked.body + event.data)
        elif isinstance(event, h11.EndOfMessage):
            return asked


def _serialized(parser: h11.Connection, reply: Reply) -> bytes:
    headers = [*reply.headers, ("Content-Length", str(len(reply.body))), ("Connection", "close")]
    parts = [
        parser.send(h11.Response(status_code=reply.status, headers=headers)),
        parser.send(h11.Data(data=reply.body)),
        parser.send(h11.EndOfMessage()),
    ]
    return b"".join(part or b"" for part in parts)


@dataclass(frozen=True)
class Effects:
    """Counts the effects of an order."""

    server: GuardedAPI
    is_total: bool = False
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return "the server's effects"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return self.server.effects[operation.values["unique"]]


def template(path: str = "/payments", **fields: object) -> RequestTemplate:
    text = json.dumps({"order": "{{unique}}", "cents": 5, **fields})
    return RequestTemplate("POST", path, (("Content-Type", "application/json"),), text)


VARIANTS = {
    Variant.MAIN: template(),
    Variant.OTHER_PATH: template("/refunds"),
    Variant.SLOW: template(kind="slow"),
    Variant.REJECTED: template(kind="rejected"),
    Variant.FAILING: template(kind="failing"),
}


def verdict_on(
    server_type: type[GuardedAPI], probe: Probe, profile: Profile = IETF, **fields: Any
) -> Verdict:
    """Return the verdict of a probe on a server; `fields` are those of the target.

    Effects are counted unless effects=None is given.
    """

    limits = replace(LIMITS, patience=server_type.patience)

    async def check() -> Verdict:
        async with server_type() as server:
            given: dict[str, Any] = {
                "variants": VARIANTS,
                "caller": ALICE,
                "other_caller": BOB,
                "effects": Effects(server),
                "slow_seconds": SLOW_SECONDS,
            }
            target = Target(server.origin, **{**given, **fields})
            # The server is near: who is asked again needs no time in between.
            with patch.object(known_outcome, "SETTLE_PAUSE_SECONDS", 0.01):
                done = await verify(target, profile, [probe], limits=limits)
        return done.verdicts[0]

    return asyncio.run(check())


def assert_holds(verdict: Verdict) -> None:
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.n >= 1
    assert verdict.window


def assert_faults(verdict: Verdict, *faults: Fault) -> None:
    """Exactly these faults were named, and exchanges show each."""
    assert verdict.status is Status.VIOLATED, verdict.summary
    assert {violation.fault for violation in verdict.violations} == set(faults), verdict.summary
    assert all(violation.exchanges for violation in verdict.violations)


def assert_not_observable(verdict: Verdict, why: str) -> None:
    """Nothing is claimed, the reason is said, and what to do about it."""
    assert verdict.status is Status.NOT_OBSERVABLE, verdict.summary
    assert why in verdict.summary
    assert verdict.advice
