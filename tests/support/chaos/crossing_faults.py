"""Faults in which two parts meet: each of them was right by itself, and the pair was not.

* A standby that commits wait for no more is cut off, and later promoted.
* The store that keys are moved to stops to write to its disk, and later crashes.
* The app's own COMMIT fails after its handler has ended.
* A consumer is started for a broker whose queue has the name of another broker's.
* A broker cancels its consumers, or closes their connections, while messages are settled.

A fault that must meet operations asks the clients for some, and goes on until it has met them or
until PATIENCE_SECONDS are over. A store that can lose what it acknowledges tells the history from
when to when: what *began* then should have been refused.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from redis.exceptions import RedisError
from tests.support.chaos.chaos_clients import ASKED_SUFFIX
from tests.support.chaos.chaos_environment import ChaosEnvironment, PythonProcess
from tests.support.chaos.chaos_history import SUFFIX, Event, read_events
from tests.support.chaos.chaos_plan import Level, Operation
from tests.support.chaos.payment_names import (
    PARCEL_SCOPE,
    SECOND_NAME,
    SECOND_SCOPE,
    STREAM,
    operation_id,
    queue_id,
)
from tests.support.chaos.rule_excuses import AWAY_STATUS

Call = Callable[[], object]
Actions = dict[str, tuple[Call, Call]]

PATIENCE_SECONDS: Final = 60.0
# Longer than the stores' guarantee_interval: every claim after it has read the new settings.
NOTICED_SECONDS: Final = 1.5
DRAIN_SECONDS: Final = 5.0  # for what had begun before
SECOND_MESSAGES: Final = 5
_LOOK_SECONDS: Final = 0.05
_WORK_MS: Final = 300
_SCOPE: Final = "acct_0"
_PENDING: Final = "SELECT count(*) FROM oncekey.records WHERE state = 1"


class CrossingFaults:
    """What begins and what ends each of these faults, by their names."""

    def __init__(self, environment: ChaosEnvironment, meanwhile: Call) -> None:
        """`meanwhile` is called while a fault waits: other faults come to their end."""
        self._environment = environment
        self._meanwhile = meanwhile
        self._chance = random.Random(f"crossings {environment.plan.options.seed}")
        self._asked = 0
        self._hit_before = 0
        self._met: list[str] = []  # the operations whose commits are to fail
        self._since: dict[str, float] = {}  # when a store began to be unprotected
        self._second: PythonProcess | None = None
        self._stranger: PythonProcess | None = None

    def of_database(self) -> Actions:
        return {
            "detached standby promoted": (self._detach, self._promote_detached),
            "app commits refused": (lambda: self._fail_commits("refuse"), self._accept_commits),
            "app sessions ended at commit": (
                lambda: self._fail_commits("terminate"),
                self._accept_commits,
            ),
        }

    def of_second_broker(self) -> Actions:
        return {"broker of the same name": (self._consume_second, self._name_second)}

    def of_rabbitmq(self) -> Actions:
        node = self._environment.rabbitmq
        assert node is not None
        queue = self._environment.parcels
        return {
            "consumers cancelled": (
                lambda: self._while_parcels_are_handled(self._environment.delete_parcels),
                self._restore_parcels,
            ),
            "rabbitmq queue crashed": (
                lambda: self._while_parcels_are_handled(lambda: node.crash_queue(queue)),
                self._send_another_parcel,
            ),
            "rabbitmq connections closed": (
                lambda: self._while_parcels_are_handled(node.close_connections),
                self._send_another_parcel,
            ),
        }

    def of_new_store(self) -> Actions:
        moved = self._environment.moved
        assert moved is not None
        return {
            "new store not durable": (self._stop_appending, self._crash_new_store),
            "new store full": (moved.fill, moved.make_room),
            "new store killed": (moved.server.kill, moved.server.start),
        }

    # --- operations that a fault asks for -------------------------------------------------------

    def _ask(self, level: Level, count: int) -> list[str]:
        """Let the clients send operations now, and return their names in the history."""
        seed, asked = self._environment.plan.options.seed, []
        for _ in range(count):
            self._asked += 1
            key = f"{seed}-asked-{self._asked}"
            number = 10**6 + self._asked
            asked.append(Operation(number, 0.0, level, key, _SCOPE, 1, _WORK_MS, 1, False, ()))
        path = self._environment.folder / f"{self._asked:06}{ASKED_SUFFIX}"
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps([asdict(one) for one in asked]), encoding="utf-8")
        unfinished.rename(path)  # the clients read it at any time
        scope = PARCEL_SCOPE if level == "parcel" else _SCOPE
        return [operation_id(scope, one.key) for one in asked]

    def _wait_for(self, kind: str, ids: Sequence[str], files: str) -> None:
        """Wait until an event of this kind was written for each of these operations."""
        self._wait(lambda: {one["id"] for one in self._events(kind, files)}.issuperset(ids))

    def _events(self, kind: str, files: str) -> list[Event]:
        """What was written so far, of this kind, into files with these names."""
        paths = sorted(self._environment.folder.glob(f"{files}{SUFFIX}"))
        return [one for path in paths for one in read_events(path) if one["kind"] == kind]

    def _wait(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until something has happened, or for so long: other faults may hold it up."""
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            self._meanwhile()

    def _tell_unprotected(self, store: str) -> None:
        """Tell since when a store, which has crashed now, could lose what it acknowledged."""
        history = self._environment.history
        history.write("unprotected", at=self._since[store], until=history.now(), store=store)

    # --- a standby that is cut off, and promoted ------------------------------------------------

    def _detach(self) -> None:
        """Let commits stop waiting for the standby, and cut it off once that was noticed."""
        pair = self._environment.database
        pair.stop_waiting_for_standby()
        self._wait(lambda: False, NOTICED_SECONDS)
        self._wait(lambda: pair.rows(_PENDING) == [(0,)], DRAIN_SECONDS)
        self._since["database"] = self._environment.history.now()
        pair.detach_standby()

    def _promote_detached(self) -> None:
        asked = self._ask("once", 2) + self._ask("late", 1) + self._ask("transactional", 1)
        self._wait_for("reply", asked, "clients")
        pair = self._environment.database
        pair.primary.kill()
        self._tell_unprotected("database")
        pair.promote_detached_standby()

    # --- the app's own COMMIT -------------------------------------------------------------------

    def _fail_commits(self, how: str) -> None:
        pair = self._environment.database
        self._hit_before = pair.commits_hit()
        pair.fail_commits(how)
        self._met = self._ask("late", 2)
        self._ask("transactional", 1)

    def _accept_commits(self) -> None:
        """Let commits work again, once those of the operations that were asked for have failed."""
        pair = self._environment.database
        self._wait(
            lambda: {
                one["id"]
                for one in self._events("reply", "clients")
                if one["status"] != AWAY_STATUS
            }.issuperset(self._met)
        )
        self._wait(lambda: pair.commits_hit() >= self._hit_before + len(self._met))
        pair.accept_commits()
        count = pair.commits_hit() - self._hit_before
        self._environment.history.write("commits failed", count=count)

    # --- two brokers with one name --------------------------------------------------------------

    def _consume_second(self) -> None:
        """Send messages with known keys to a stream of the same name on another broker, and start
        a consumer there that does not say which broker it means."""
        keys = [one.key for one in self._environment.plan.operations if one.level == "queue"]
        history = self._environment.history
        self._wait(self._broker_answers)  # another fault may have ended it
        with self._environment.broker.client(db=1) as client:
            for key in self._chance.sample(keys, min(SECOND_MESSAGES, len(keys))):
                body = json.dumps({"id": key, "work_ms": 0})
                id = queue_id(key, SECOND_SCOPE)
                history.write("publish", id=id, body=body)
                client.xadd(STREAM, {"body": body})
                history.write("published", id=id)
        self._stranger = self._environment.consumer("stranger", "second")

    def _broker_answers(self) -> bool:
        try:
            with self._environment.broker.client(db=1) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def _name_second(self) -> None:
        """Wait until that consumer is refused; then start one that names its broker."""
        stranger = self._stranger
        assert stranger is not None
        self._wait(lambda: not stranger.is_running)
        stranger.kill()
        if self._second is None:
            self._second = self._environment.consumer("second", "second", broker_name=SECOND_NAME)
            self._environment.consumers.append(self._second)

    # --- a broker that ends its subscriptions ---------------------------------------------------

    def _while_parcels_are_handled(self, end_subscriptions: Call) -> None:
        self._wait_for("begin", self._ask("parcel", 3), "consumer-*")
        end_subscriptions()

    def _restore_parcels(self) -> None:
        """Make the queue again, once a consumer has told that it has lost it."""
        (*_, deleted) = self._events("parcels deleted", "run")
        self._wait(
            lambda: any(one["at"] > deleted["at"] for one in self._events("logged", "consumer-*"))
        )
        self._environment.declare_parcels()
        self._send_another_parcel()

    def _send_another_parcel(self) -> None:
        """Send one that nobody would handle if the consumers had not subscribed again."""
        self._ask("parcel", 1)

    # --- the settings of the store that keys are moved to ---------------------------------------

    def _stop_appending(self) -> None:
        moved = self._environment.moved
        assert moved is not None
        moved.stop_appending()
        self._wait(lambda: False, NOTICED_SECONDS + _WORK_MS / 1_000)
        self._since["new store"] = self._environment.history.now()
        moved.keep_what_there_is()

    def _crash_new_store(self) -> None:
        moved = self._environment.moved
        assert moved is not None
        self._wait_for("reply", self._ask("moved", 4), "clients")
        moved.server.kill()
        self._tell_unprotected("new store")
        moved.crash()
