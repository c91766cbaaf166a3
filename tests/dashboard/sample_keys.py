"""Keys of every kind in a store, as services leave them, for the tests of the dashboard."""

from __future__ import annotations

import json
import secrets
from typing import Any

from oncekey.core import codec as codecs
from oncekey.core.answer import HTTP_CODEC, encode_head
from oncekey.core.codec import JSON
from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Release,
    Renew,
    Reply,
    Resolve,
    SaveStep,
    Unknown,
)
from oncekey.core.identity import Identities
from oncekey.core.origin import Origin, label_of
from oncekey.core.record import State
from oncekey.core.step_format import pack_step
from oncekey.core.store import Store

SECOND = 1_000_000
HOUR = 3_600 * SECOND
CHARGES = Origin("http", "POST /charges", "create_charge")
XSS = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class SampleKeys:
    """Writes keys with the commands that an engine sends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identities = Identities(None)

    def claim(
        self,
        operation: str,
        key: str,
        *,
        scope: str = "acct_1",
        origin: Origin | None = None,
        lease: int = HOUR,
        retry_safe: bool = False,
    ) -> tuple[bytes, bytes, int]:
        """A claimed key: its id, its owner and its fence."""
        claim = self._claim_of(operation, key, scope, origin, lease, retry_safe)
        reply = self._send(claim)
        assert isinstance(reply, Claimed)
        return claim.id, claim.owner, reply.fence

    def _claim_of(
        self,
        operation: str,
        key: str,
        scope: str,
        origin: Origin | None = None,
        lease: int = 1,
        retry_safe: bool = False,
    ) -> Claim:
        id = self._identities.identify(scope, operation, key).id
        owner = secrets.token_bytes(16)
        label = label_of(operation, origin)
        fingerprint = b"\x01" + b"\x5a" * 32
        return Claim(
            id, owner, fingerprint, lease, 24 * HOUR, 24 * HOUR, retry_safe, scope, label, key
        )

    def unknown(self, operation: str, key: str, **options: Any) -> str:
        """A key whose owner died: its lease is over at once."""
        return self.claim(operation, key, lease=1, **options)[0].hex()

    def given_up(self, operation: str, key: str) -> str:
        """A key whose owner died, which a later claim has given up as unknown."""
        id = self.unknown(operation, key)
        assert isinstance(self._send(self._claim_of(operation, key, "acct_1")), Unknown)
        return id

    def ended(
        self, operation: str, key: str, body: bytes, state: State = State.SUCCEEDED, **options: Any
    ) -> str:
        id, owner, fence = self.claim(operation, key, **options)
        assert self._send(Finish(id, owner, fence, state, body)) == Done()
        return id.hex()

    def step(self, held: tuple[bytes, bytes, int], name: str, done: bool, body: bytes) -> None:
        assert self._send(SaveStep(*held, name, done, body)) == Done()

    def finish(self, held: tuple[bytes, bytes, int], body: bytes) -> None:
        assert self._send(Finish(*held, State.SUCCEEDED, body)) == Done()

    def resolve(self, id: str, state: State, body: bytes, note: str, fence: int) -> None:
        assert self._send(Resolve(bytes.fromhex(id), fence, state, body, note)) == Done()

    def renew(self, held: tuple[bytes, bytes, int]) -> None:
        """The owner comes back and falls silent again at once."""
        assert self._send(Renew(*held, lease=1)) == Done()

    def release(self, held: tuple[bytes, bytes, int]) -> None:
        assert self._send(Release(*held)) == Done()

    def _send(self, command: Command) -> Reply:
        return self._store.apply([command])[0]


def value(of: Any) -> bytes:
    return codecs.pack_value(JSON, of)


def response(status: int, body: Any) -> bytes:
    head = encode_head(status, ((b"content-type", b"application/json"),), False)
    return codecs.pack_bytes(HTTP_CODEC, head + json.dumps(body).encode())


def fill(store: Store) -> dict[str, str]:
    """One key of every kind; returns their ids by name."""
    keys = SampleKeys(store)
    ids = {
        "http": keys.ended("http", "order-1041", response(201, {"charge": "ch_7"}), origin=CHARGES),
        "function": keys.ended("send-receipt", "order-1041", value({"sent": True})),
    }
    error = codecs.pack_error(ValueError("card number 4242 was refused"))
    ids["failed"] = keys.ended("refund", "order-1040", error, State.FAILED)
    ids["unknown-http"] = keys.unknown("http", "order-1042", origin=CHARGES)
    ids["unknown"] = keys.unknown("payout", "payout-7", scope="acct_2")
    ids["silent"] = keys.claim("export", "night-1", lease=1, retry_safe=True)[0].hex()
    ids["pending"] = keys.claim("http", "order-1043", origin=CHARGES)[0].hex()
    held = keys.claim("checkout", "cart-17", scope="acct_3")
    keys.step(held, "inventory:reserve", True, pack_step({"external_id": "h-1"}, value("h-1")))
    facts = {"external_id": "ch_9", "status": "201"}
    keys.step(held, "payment:charge", True, pack_step(facts, value({"secret": "step-value"})))
    keys.step(held, "mail:receipt", False, pack_step({"key": "ok1-child"}, value({"to": "ada"})))
    ids["steps"] = held[0].hex()
    origin = Origin("http", f"POST /{XSS}", XSS)
    ids["xss"] = keys.unknown("http", XSS, scope=XSS, origin=origin)
    ids["xss-done"] = keys.ended(XSS, XSS, value({XSS: XSS}), scope=XSS)
    return ids
