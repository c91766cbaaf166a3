"""One worker process of the hammer: attempts with pauses, crashes and lost replies, all logged.

A Recorder (recorder.py) wraps the store and logs every command. What runs through Once is logged as
its caller sees it, too: each body, and each result.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.hammer.command_log import (
    BODY,
    NOT_STARTED,
    RAISED,
    RESULT,
    RETURNED,
    Entry,
    Log,
    monotonic_us,
)
from tests.support.hammer.recorder import Recorder

from oncekey.core.codec import JSON, pack_error, pack_value
from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Finish,
    Look,
    Mismatched,
    Release,
    Renew,
    Reply,
    Resolve,
    SaveStep,
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
from oncekey.core.record import State
from oncekey.core.search import Query
from oncekey.core.store import Store
from oncekey.engine.keys.administration import (
    FREE,
    decide_key,
    failed,
    list_keys,
    look_at,
    run_plan,
    succeeded,
)
from oncekey.engine.once import Once

IN_BATCHES = 0.25
OPERATES = 0.05
BATCH_MAX = 10
OTHER_REQUEST = 0.08
UNSAFE = 0.4
UNKNOWN_KEYS = Query(states=frozenset((State.UNKNOWN,)))


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers share: how many keys, the durations in microseconds, and which share of
    the work is done through Once instead of by commands."""

    keys: int
    lease: int
    keep: int
    audit: int
    crashes: bool = True
    through_once: float = 0.15


class Worker:
    """Works on random keys until its time is over, or its rounds are."""

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

    def run_until(self, end: float, rounds: int = 0) -> None:
        """Work until `end`; if `rounds` are given, for so many at the most."""
        for _ in range(rounds) if rounds else itertools.count():
            if time.monotonic() >= end:
                return
            key = f"key {self.dice.randrange(self.load.keys)}"
            chance = self.dice.random()
            if chance < self.load.through_once:
                self.run_once(key)
            elif chance < self.load.through_once + IN_BATCHES:
                self.in_batches()
            elif chance < self.load.through_once + IN_BATCHES + OPERATES:
                self.operate()
            else:
                self.by_hand(key)

    # --- through the engine -------------------------------------------------------------------

    def run_once(self, key: str) -> None:
        safe = self.dice.random() > UNSAFE
        id = self.identities.identify("", "hammer", key).id

        def body(attempt: Any) -> str:
            began = monotonic_us()
            ended = RAISED
            try:
                value = self.work(attempt)
                ended = RETURNED
                return value
            except NotStarted:
                ended = NOT_STARTED
                raise
            finally:
                self.log.write(
                    Entry(
                        id.hex(),
                        BODY,
                        began,
                        monotonic_us(),
                        ended,
                        fence=attempt.fence,
                        retry_safe=safe,
                        deadline=attempt._deadline,
                    )
                )

        try:
            result = self.once.run(
                "hammer",
                key,
                body,
                request=self.request(),
                retry_safe=safe,
                wait="20ms" if self.dice.random() < 0.3 else "0s",
            )
            now = monotonic_us()
            self.log.write(Entry(id.hex(), RESULT, now, now, "", fence=result.fence))
        except (OncekeyError, NotStarted, Terminal, ValueError):
            self.log.count("refusals through Once")

    def work(self, attempt: Any) -> str:
        """What a body does."""
        chance = self.dice.random()
        if chance < 0.5:
            attempt.step("pay", lambda child: child)
        if chance < 0.1:
            raise NotStarted
        if chance < 0.2:
            raise Terminal("the hammer says so")
        if chance < 0.3:
            raise ValueError("the hammer does not say what has happened")
        if chance < 0.5:
            self.pause(2.0)  # heartbeats keep the claim alive
        return f"{attempt.fence}"

    # --- by hand ------------------------------------------------------------------------------

    def by_hand(self, key: str) -> None:
        claim = self.claim(key)
        reply = self.send(claim)
        if isinstance(reply, Claimed):
            self.hold(claim, reply.fence)
        elif isinstance(reply, Unknown) and self.dice.random() < 0.3:
            self.send(self.resolution(claim.id, reply.record.fence))
        else:
            if isinstance(reply, Mismatched):
                self.send(Look(claim.id))  # the rejection has changed nothing
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
