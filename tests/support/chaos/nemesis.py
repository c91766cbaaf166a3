"""The nemesis: it injects the planned faults into a running environment, and heals them.

One thread does it, at the planned times. A fault whose subject is still broken by an earlier one
waits until that has healed, so the true times, which the history has, may be later than planned.
The faults that are more than one step are in crossing_faults.py.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.support.chaos.chaos_environment import ChaosEnvironment, PythonProcess
from tests.support.chaos.chaos_plan import Fault
from tests.support.chaos.crossing_faults import Actions, Call, CrossingFaults
from tests.support.servers import Proxy
from tests.support.servers.processes import children_of

GAP_SECONDS: Final = 0.1  # between two faults of one subject
_TICK_SECONDS: Final = 0.05
_FIRST_BYTES: Final = 60  # of a response that is cut short: a part of its head


class Nemesis:
    """Runs the faults of a plan. `is_over` is asked now and then, and ends the run early."""

    def __init__(self, environment: ChaosEnvironment) -> None:
        self._environment = environment
        self._chance = random.Random(f"nemesis {environment.plan.options.seed}")
        self._order = itertools.count()
        self._due: list[tuple[float, int, Fault, float | None]] = []
        self._crossings = CrossingFaults(environment, self._end_due)
        self._broken: dict[tuple[str, int], float] = {}
        self.injected = 0

    def run(self) -> None:
        """Inject and heal every planned fault, and return when the plan's time is over."""
        for fault in self._environment.plan.faults:
            self._push(fault.at, fault, None)
        while self._due:
            at, _, fault, began = heapq.heappop(self._due)
            self._sleep_until(at)
            if began is None:
                self._begin(fault)
            else:
                self._end(fault, began)
        self._sleep_until(self._environment.plan.options.seconds)

    def _end_due(self) -> None:
        """Heal what is to be healed by now. A fault that waits for something calls it."""
        due = [one for one in self._due if one[0] <= self._now() and one[3] is not None]
        for one in due:
            if one in self._due:  # what ended before it may have ended it too
                self._due.remove(one)
                heapq.heapify(self._due)
                assert one[3] is not None
                self._end(one[2], one[3])

    def _push(self, at: float, fault: Fault, began: float | None) -> None:
        heapq.heappush(self._due, (at, next(self._order), fault, began))

    def _now(self) -> float:
        return self._environment.history.now() - self._environment.began

    def _sleep_until(self, at: float) -> None:
        while (left := at - self._now()) > 0:
            time.sleep(min(left, _TICK_SECONDS))
            self._environment.restart_refused()

    def _begin(self, fault: Fault) -> None:
        subject = _subject(fault)
        if subject in self._broken:
            self._push(self._broken[subject] + GAP_SECONDS, fault, None)
            return
        began = self._environment.history.now()
        begin, _ = self._actions(fault)
        begin()
        self.injected += 1
        until = self._now() + fault.seconds
        self._broken[subject] = until
        self._push(until, fault, began)

    def _end(self, fault: Fault, began: float) -> None:
        _, end = self._actions(fault)
        end()
        del self._broken[_subject(fault)]
        history = self._environment.history
        target = f"{fault.subject} {fault.target}" if _has_target(fault) else fault.subject
        history.write(
            "fault",
            at=began,
            until=history.now(),
            what=fault.kind,
            target=target,
            number=fault.number,
            amount=fault.amount,
        )

    # --- the faults -----------------------------------------------------------------------------

    def _actions(self, fault: Fault) -> tuple[Call, Call]:
        """Return what begins and what ends a fault."""
        crossings = self._crossings
        by_subject: dict[str, Callable[[Fault], Actions]] = {
            "worker": lambda one: self._process_faults(self._environment.workers, one),
            "consumer": lambda one: self._process_faults(self._environment.consumers, one),
            "database": self._database_faults,
            "client network": self._client_network_faults,
            "store network": self._store_network_faults,
            "broker": self._broker_faults,
            "second broker": lambda _: crossings.of_second_broker(),
            "rabbitmq": lambda _: crossings.of_rabbitmq(),
            "new store": lambda _: crossings.of_new_store(),
        }
        return by_subject[fault.subject](fault)[fault.kind]

    def _process_faults(self, processes: list[PythonProcess], fault: Fault) -> Actions:
        one = processes[fault.target]
        return {
            f"{fault.subject} killed": (one.kill, one.launch),
            f"{fault.subject} paused": (one.pause, one.resume),
            f"{fault.subject} stopped": (one.terminate, one.relaunch),
        }

    def _database_faults(self, fault: Fault) -> Actions:
        pair = self._environment.database
        clock = pair.clock
        return {
            "database killed": (pair.primary.kill, pair.ensure_running),
            "database crashed": (lambda: pair.primary.stop("immediate"), pair.ensure_running),
            "database restarted": (lambda: pair.primary.stop("fast"), pair.ensure_running),
            "backend killed": (self._kill_backend, pair.ensure_running),
            "database frozen": (pair.primary.freeze, pair.primary.thaw),
            "database clock jumps": (lambda: clock.set(fault.amount), lambda: None),
            "disk full": (self._fill_disk, self._free_disk),
            "standby promoted": (self._kill_primary, pair.promote_standby),
            "standby frozen": (
                lambda: pair.stream.hold("replies"),
                pair.stream.resume,
            ),
            "standby killed": (pair.standby.kill, pair.ensure_running),
            "lagging standby promoted": (
                lambda: pair.stream.hold("replies"),
                self._promote_lagging_standby,
            ),
            **self._crossings.of_database(),
        }

    def _kill_primary(self) -> None:
        """Kill the primary while its standby has everything that was acknowledged."""
        if self._environment.database.durable:
            self._environment.database.wait_until_caught_up()
        self._environment.database.primary.kill()

    def _promote_lagging_standby(self) -> None:
        """Kill the primary, lose the WAL that is on its way, and promote the standby."""
        pair = self._environment.database
        pair.primary.kill()
        pair.stream.cut()
        pair.stream.heal()
        pair.promote_standby()

    def _kill_backend(self) -> None:
        """Kill one session of the server, for which the server ends and restarts all of them."""
        pids = children_of(self._environment.database.primary.pid)
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(pids), signal.SIGKILL)

    def _fill_disk(self) -> None:
        pair = self._environment.database
        pair.disk.fill(pair.primary)

    def _free_disk(self) -> None:
        pair = self._environment.database
        pair.disk.free(pair.primary)
        pair.ensure_running()

    def _client_network_faults(self, fault: Fault) -> Actions:
        proxy = self._environment.worker_proxies[fault.target]
        times = int(fault.amount)
        return {
            "client connections cut": (proxy.cut, proxy.heal),
            "client network black hole": (proxy.hold, proxy.resume),
            "client network refuses": (proxy.refuse, proxy.accept),
            "responses lost": (lambda: proxy.drop_replies(b"POST ", times), proxy.heal),
            "responses cut short": (
                lambda: proxy.drop_replies(b"POST ", times, keep=_FIRST_BYTES),
                proxy.heal,
            ),
        }

    def _store_network_faults(self, fault: Fault) -> Actions:
        proxies = self._environment.database.proxies
        times = int(fault.amount)

        def each(*acts: Callable[[Proxy], object]) -> Call:
            return lambda: [act(proxy) for proxy in proxies for act in acts]

        return {
            "store connections cut": (each(Proxy.cut), each(Proxy.heal)),
            "store network black hole": (
                each(Proxy.hold),
                each(Proxy.resume),
            ),
            "store network refuses": (
                each(Proxy.refuse, Proxy.cut),
                each(Proxy.accept),
            ),
            "store replies lost": (
                each(lambda one: one.drop_replies(b"", times)),
                each(Proxy.heal),
            ),
        }

    def _broker_faults(self, fault: Fault) -> Actions:
        broker, proxy = self._environment.broker, self._environment.broker_proxy
        return {
            "broker killed": (broker.kill, broker.start),
            "broker connections cut": (proxy.cut, proxy.heal),
        }


def _has_target(fault: Fault) -> bool:
    return fault.subject in ("worker", "consumer", "client network")


def _subject(fault: Fault) -> tuple[str, int]:
    return fault.subject, fault.target if _has_target(fault) else 0
