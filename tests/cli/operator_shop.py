"""A store with keys in every state, as operators find them, on SQLite, PostgreSQL or Valkey."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claim, Claimed, Command, Finish, Reply, SaveStep
from oncekey.core.identity import Identities, Identity
from oncekey.core.origin import Origin, label_of
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.engine.keys.administration import HttpAnswer

MINUTE_US = 60_000_000
DAY_US = 24 * 60 * MINUTE_US
ROUTE = Origin("http", "POST /charges", "create_charge")
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN
OpenStore = Callable[[Callable[[], int]], Store]


class Owner(NamedTuple):
    """An attempt that holds, or held, a key."""

    identity: Identity
    claim: Claim
    fence: int

    @property
    def tag(self) -> str:
        return self.identity.tag

    def finish(self, value: Any, state: State = SUCCEEDED) -> Finish:
        body = value.packed() if isinstance(value, HttpAnswer) else pack_value(JSON, value)
        return Finish(self.identity.id, self.claim.owner, self.fence, state, body)


@dataclass
class Shop:
    """The store's URL, and what other processes do to its keys."""

    url: str
    open: OpenStore

    def __post_init__(self) -> None:
        self._ago = 0
        self.store = self.open(lambda: time.time_ns() // 1_000 - self._ago)

    def send(self, command: Command) -> Reply:
        (reply,) = self.store.apply([command])
        return reply

    def claim(
        self,
        operation: str,
        key: str,
        *,
        scope: str = "",
        origin: Origin | None = None,
        raw: bool = False,
        retry_safe: bool = False,
        ago: int = 0,
    ) -> Owner:
        """Claims a key, so many microseconds ago."""
        identity = Identities().identify(scope, operation, key)
        claim = Claim(
            identity.id, os.urandom(16), b"\x01same", MINUTE_US, DAY_US, DAY_US, retry_safe,
            scope, label_of(operation, origin), key if raw else "",
        )  # fmt: skip
        self._ago = ago
        try:
            reply = self.send(claim)
        finally:
            self._ago = 0
        assert isinstance(reply, Claimed)
        return Owner(identity, claim, reply.fence)

    def unknown(self, operation: str, key: str, **options: Any) -> Owner:
        """A key whose owner died ten minutes ago."""
        return self.claim(operation, key, ago=10 * MINUTE_US, **options)

    def finished(self, operation: str, key: str, value: Any, **options: Any) -> Owner:
        owner = self.claim(operation, key, **options)
        self.send(owner.finish(value))
        return owner

    def with_step(self, owner: Owner, name: str, done: bool, body: bytes) -> None:
        self.send(SaveStep(owner.identity.id, owner.claim.owner, owner.fence, name, done, body))
