"""One worker process of the hammer: attempts with pauses, crashes and lost replies, all logged.

A `Recorder` wraps the store: it logs every command with its reply, then may drop the reply or end
the process.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.hammer.command_log import Log, entry, monotonic_us

from oncekey.core.codec import JSON, pack_error, pack_value
from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Finish,
    Release,
    Renew,
    Reply,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.errors import (
    KeyChanged,
    NotStarted,
    OncekeyError,
    StoreUnavailable,
    Terminal,
)
from oncekey.core.identity import Identities
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Store, Unfinished
from oncekey.engine.administration import (
    FREE,
    decide_key,
    failed,
    list_keys,
    look_at,
    run_plan,
    succeeded,
)
from oncekey.engine.blocking.once import Once

CRASHED = 7  # the exit code of a worker that crashed on purpose

LOSE_REPLY = 0.05
CRASH = 0.003
THROUGH_ONCE = 0.15
IN_BATCHES = 0.25
OPERATES = 0.05
BATCH_MAX = 10
OTHER_REQUEST = 0.08
UNSAFE = 0.4
UNKNOWN_KEYS = Query(states=frozenset((State.UNKNOWN,)))


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers share: how many keys, and the durations in microseconds."""

    keys: int
    lease: int
    keep: int
    audit: int
    crashes: bool = True


class Recorder:
    """A store that logs every command, and sometimes drops the reply or ends the process."""

    immediate = True  # no batches by the engine: the worker makes batches itself
    max_in_flight = 1

    def __init__(self, inner: Store, log: Log, dice: random.Random, *, crashes: bool) -> None:
        self.inner = inner
        self.guarantee = inner.guarantee
        self.lazy = inner.lazy
        self._log = log
        self._dice = dice
        self._crashes = crashes
        self._in_flight = 0
        self._lock = threading.Lock()

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        fate = self._dice.random()
        seen = fate > LOSE_REPLY
        replies = self._applied(commands, seen=seen)
        if self._crashes and fate > 1 - CRASH:
            self._crash()
        if not seen:
            self._log.count("lost replies", len(commands))
            raise StoreUnavailable("the hammer lost this reply", ambiguous=True)
        return replies

    def _applied(self, commands: Sequence[Command], *, seen: bool) -> list[Reply]:
        with self._lock:
            self._in_flight += 1
        try:
            sent = monotonic_us()
            try:
                replies = self.inner.apply(commands)
            except StoreUnavailable:
                came = monotonic_us()
                self._log.write(*(entry(one, None, sent, came, seen=False) for one in commands))
                raise
            came = monotonic_us()
            pairs = zip(commands, replies, strict=True)
            self._log.write(*(entry(one, reply, sent, came, seen=seen) for one, reply in pairs))
            return replies
        finally:
            with self._lock:
                self._in_flight -= 1

    def _crash(self) -> None:
        """End the process, unless a call of another thread is in flight, whose reply would not be
        logged."""
        with self._lock:
            if not self._in_flight:
                self._log.count("crashes")
                os._exit(CRASHED)

    def bind(self, check: bytes, /) -> Seen | None:
        return self.inner.bind(check)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self.inner.sweep(limit)

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self.inner.elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.inner.unfinished(after, limit)

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.inner.search(query, limit, after)

    def history(self, id: bytes, /) -> list[Record]:
        return self.inner.history(id)

    def measure(self) -> Measures:
        return self.inner.measure()

    def join(self, connection: Any, /) -> CallerTransaction:
        return self.inner.join(connection)

    def close(self) -> None:
        self.inner.close()


class Worker:
    """Works on random keys until its time is over."""

    def __init__(self, store: Store, log: Log, load: Load, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = log
        self.load = load
        self.store = Recorder(store, log, self.dice, crashes=load.crashes)
        self.identities = Identities()
        self.once = Once(
            self.store,
            cache=0,
            policy=Policy(lease=f"{load.lease}us", keep=f"{load.keep}us", audit=f"{load.audit}us"),
        )

    def run_until(self, end: float) -> None:
        while time.monotonic() < end:
            key = f"key {self.dice.randrange(self.load.keys)}"
            chance = self.dice.random()
            if chance < THROUGH_ONCE:
                self.through_once(key)
            elif chance < THROUGH_ONCE + IN_BATCHES:
                self.in_batches()
            elif chance < THROUGH_ONCE + IN_BATCHES + OPERATES:
                self.operate()
            else:
                self.by_hand(key)

    # --- through the engine -------------------------------------------------------------------

    def through_once(self, key: str) -> None:
        def body(attempt: Any) -> str:
            chance = self.dice.random()
            if chance < 0.5:
                attempt.step("pay", lambda child: child)
            if chance < 0.1:
                raise NotStarted
            if chance < 0.2:
                raise Terminal("the hammer says so")
            if chance < 0.4:
                self.pause(2.0)  # heartbeats keep the claim alive
            return f"{attempt.fence}"

        try:
            self.once.run(
                "hammer",
                key,
                body,
                request=self.request(),
                retry_safe=self.dice.random() > UNSAFE,
                wait="20ms" if self.dice.random() < 0.3 else "0s",
            )
        except (OncekeyError, NotStarted, Terminal):
            self.log.count("refusals through Once")

    # --- by hand ------------------------------------------------------------------------------

    def by_hand(self, key: str) -> None:
        claim = self.claim(key)
        reply = self.send(claim)
        if isinstance(reply, Claimed):
            self.hold(claim, reply.fence)
        elif isinstance(reply, Unknown) and self.dice.random() < 0.3:
            self.send(self.resolution(claim.id, reply.record.fence))
        else:
            self.pause(0.02)

    def claim(self, key: str) -> Claim:
        return Claim(
            self.identities.identify("", "hammer", key).id,
            self.dice.randbytes(16),
            self.identities.fingerprint(self.request()),
            self.load.lease,
            self.load.keep,
            self.load.audit,
            self.dice.random() > UNSAFE,
        )

    def hold(self, claim: Claim, fence: int) -> None:
        """What follows a granted claim: most finish, some pause too long and then try to."""
        id, owner = claim.id, claim.owner
        chance = self.dice.random()
        if chance < 0.08:
            self.log.count("abandoned")
            return
        if chance < 0.3:
            self.pause(2.0)  # a zombie, if somebody takes over meanwhile
        elif chance < 0.5:
            for _ in range(self.dice.randrange(4)):
                self.pause(0.4)
                self.send(Renew(id, owner, fence, self.load.lease))
        if self.dice.random() < 0.2:
            self.send(SaveStep(id, owner, fence, "pay", False, b"intent"))
        if self.dice.random() < 0.15:
            self.send(Release(id, owner, fence if self.dice.random() < 0.5 else None))
        else:
            self.send(self.ending(id, owner, fence))
        if self.dice.random() < 0.1:
            self.pause(1.5)
            self.send(self.ending(id, owner, fence))  # once more, after a pause

    def ending(self, id: bytes, owner: bytes, fence: int) -> Finish:
        chance = self.dice.random()
        if chance < 0.75:
            body = pack_value(JSON, f"{fence} {owner.hex()}")
            return Finish(id, owner, fence, State.SUCCEEDED, body)
        state = State.FAILED if chance < 0.95 else State.UNKNOWN
        return Finish(id, owner, fence, state, pack_error(ValueError(f"{fence}")))

    def resolution(self, id: bytes, fence: int) -> Resolve:
        state = self.dice.choice([State.SUCCEEDED, State.FAILED, State.ABSENT])
        note = f"hammer {self.dice.getrandbits(32)}"
        body = b"" if state is State.ABSENT else pack_value(JSON, note)
        return Resolve(id, fence, state, body, note)

    def operate(self) -> None:
        """An operator decides the newest unknown key as it was shown, after some thought."""
        try:
            listing = run_plan(self.store, list_keys(UNKNOWN_KEYS, 1, None))
            if not listing.keys:
                return
            status = run_plan(self.store, look_at(bytes.fromhex(listing.keys[0].id), JSON))
            if status is None or status.state != "unknown" or status.expired:
                return
            self.pause(1.0)
            why = f"{self.dice.getrandbits(32)}"
            chosen = self.dice.choice([FREE, failed(why), succeeded(status, why, JSON)])
            plan = decide_key(status, chosen, State.UNKNOWN, by="operator", why=why)
            run_plan(self.store, plan)
            self.log.count("decided by operators")
        except KeyChanged:
            self.log.count("operators came too late")
        except StoreUnavailable:
            self.log.count("operators got no reply")

    # --- many at once -------------------------------------------------------------------------

    def in_batches(self) -> None:
        """Claim many keys in one batch; then end them in another, with more claims among them."""
        claims = self.claims()
        endings: list[Command] = []
        for claim, reply in zip(claims, self.send_all(claims), strict=True):
            if isinstance(reply, Claimed):
                endings.append(self.what_follows(claim, reply.fence))
            elif isinstance(reply, Unknown) and self.dice.random() < 0.3:
                endings.append(self.resolution(claim.id, reply.record.fence))
        if self.dice.random() < 0.3:
            self.pause(1.5)
        mixed = [*endings, *self.claims()[: BATCH_MAX // 2]]
        self.dice.shuffle(mixed)
        self.send_all(mixed)  # keys that are granted here are abandoned

    def claims(self) -> list[Claim]:
        """Some claims, sometimes two of one key."""
        numbers = range(self.dice.randint(2, BATCH_MAX))
        return [self.claim(f"key {self.dice.randrange(self.load.keys)}") for _ in numbers]

    def what_follows(self, claim: Claim, fence: int) -> Command:
        chance = self.dice.random()
        if chance < 0.1:
            return Renew(claim.id, claim.owner, fence, self.load.lease)
        if chance < 0.2:
            return Release(claim.id, claim.owner, fence)
        return self.ending(claim.id, claim.owner, fence)

    # --- sending ------------------------------------------------------------------------------

    def send(self, command: Command) -> Reply | None:
        return self.send_all([command])[0]

    def send_all(self, commands: Sequence[Command]) -> Sequence[Reply | None]:
        """Send commands, and send the same ones again while their replies are lost."""
        for _ in range(5):
            try:
                return self.store.apply(commands)
            except StoreUnavailable:
                self.log.count("repeats")
                if self.dice.random() < 0.3:
                    self.pause(1.0)
        return [None] * len(commands)

    def request(self) -> str:
        return "other" if self.dice.random() < OTHER_REQUEST else "usual"

    def pause(self, leases: float) -> None:
        time.sleep(self.dice.random() * leases * self.load.lease / 1_000_000)
