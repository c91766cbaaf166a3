"""One run: plan, environment, faults, healing, and the whole history in one list of events.

The history ends with what the database has: a `record` for each key, and a `row` for each row that
a transactional operation has written.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.chaos.chaos_clients import publish_parcel
from tests.support.chaos.chaos_environment import ChaosEnvironment
from tests.support.chaos.chaos_history import Event, merged
from tests.support.chaos.chaos_plan import ChaosPlan
from tests.support.chaos.nemesis import Nemesis
from tests.support.chaos.operation_history import read_history
from tests.support.chaos.payment_names import PARCEL_SCOPE, PARCELS, STREAM, TABLE
from tests.support.servers.rabbitmq_server import RabbitServer

LAST_SECONDS: Final = 180  # for the clients to learn every outcome, once they have sent it all
SENDING_SECONDS: Final = 1_800  # for what a slow machine has left to send when the run has healed
_LOOK_SECONDS: Final = 0.2

RECORDS: Final = """SELECT encode(uuid_send(id), 'hex'), state, fence, attempt, scope, operation,
                           key, retry_safe, finished_at > 0, convert_from(body, 'LATIN1'), note
                    FROM oncekey.records"""
_PARCELS_DONE: Final = (
    f"SELECT key FROM oncekey.records WHERE state = 2 AND starts_with(operation, '{PARCELS}')"  # noqa: S608
)
PAST: Final = "SELECT count(*) FROM oncekey.history"


def run(plan: ChaosPlan, log: Path, rabbitmq: RabbitServer | None = None) -> list[Event]:
    """Run a plan, and return the history. What the processes printed is written to `log`. A node of
    RabbitMQ that runs may be given."""
    with tempfile.TemporaryDirectory(prefix="oncekey-chaos-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environment = ChaosEnvironment(plan, folder, rabbitmq)
        with environment:
            environment.begin()
            _say(f"the plan has {len(plan.operations)} operations, {len(plan.faults)} faults")
            nemesis = Nemesis(environment)
            nemesis.run()
            _heal(environment)
            ended = (_wait_for_clients, _wait_for_streams, _wait_for_parcels)
            is_complete = all(one(environment) for one in ended)
            logs = environment.logs()
            if not is_complete:
                _say("the run does not come to an end; its processes are stopped")
                environment.stop_what_writes()
            _collect(environment, is_complete=is_complete)
        events = merged(folder, environment.began)
    log.write_text(logs, encoding="utf-8")
    return [{"at": 0.0, "kind": "plan", "options": plan.as_json()["options"]}, *events]


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _heal(environment: ChaosEnvironment) -> None:
    """Bring back everything that a fault may have left broken."""
    database = environment.database
    database.clock.set(0.0)
    database.ensure_running()
    database.wait_until_caught_up()
    environment.restart_refused()
    database.accept_commits()  # without durability a crash may have brought the order back
    for process in [*environment.workers, *environment.movers, *environment.consumers]:
        if not process.is_running:
            environment.history.write("found dead", by=process.role, log=process.log[-2_000:])
            process.relaunch()
    for worker in [*environment.workers, *environment.movers]:
        worker.wait_ready()
    environment.history.write("healed")
    environment.tell_healed()
    _say("healed; the clients ask for what they do not know")


def _wait_for_clients(environment: ChaosEnvironment) -> bool:
    end, has_sent_all = time.monotonic() + SENDING_SECONDS, False
    while not environment.clients_ended():
        if environment.have_sent_all() and not has_sent_all:
            end, has_sent_all = time.monotonic() + LAST_SECONDS, True
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _wait_for_streams(environment: ChaosEnvironment) -> bool:
    """Wait until every order was delivered and acknowledged, on both brokers; True if so."""
    with environment.broker.client(db=1) as client:
        numbers = [0, 1] if client.exists(STREAM) else [0]
    return all(_wait_for_stream(environment, number) for number in numbers)


def _wait_for_stream(environment: ChaosEnvironment, number: int) -> bool:
    end = time.monotonic() + LAST_SECONDS / 3
    with environment.broker.client(db=number) as client:
        while True:
            (group,) = client.xinfo_groups(STREAM)
            left = {"pending": group["pending"], "lag": group["lag"]}
            if not any(left.values()):
                return True
            if time.monotonic() > end:
                environment.history.write("left in the stream", at=None, **left)
                return False
            time.sleep(_LOOK_SECONDS)


def _wait_for_parcels(environment: ChaosEnvironment) -> bool:
    """Wait until every message that RabbitMQ has confirmed has an outcome; True if so.

    What was sent before the queue was deleted, and has no outcome, is sent once more: it was lost
    with the queue, and an app publishes it again, from its outbox.
    """
    if environment.rabbitmq is None:
        return True
    history = read_history(merged(environment.folder, 0.0))
    parcels = {one.key: one for one in history.operations.values() if one.scope == PARCEL_SCOPE}
    sent = {key for key, one in parcels.items() if one.published}
    deleted = max((event["at"] for event in history.deletions), default=0.0)

    def left() -> set[str]:
        return sent - {key for (key,) in environment.database.rows(_PARCELS_DONE)}

    for key in sorted(left()):
        first = parcels[key].publishings[0]
        if first["at"] <= deleted:
            publish_parcel(environment.rabbitmq.url, environment.parcels, first["body"])
    end = time.monotonic() + LAST_SECONDS / 3
    while left():
        if time.monotonic() > end:
            environment.history.write("left in the stream", parcels=sorted(left())[:20])
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _collect(environment: ChaosEnvironment, *, is_complete: bool) -> None:
    history, database = environment.history, environment.database
    for row in database.rows(RECORDS):
        names = "record state fence attempt scope operation key retry_safe finished body note"
        history.write("record", **dict(zip(names.split(), row, strict=True)))
    for id, run, cents in database.rows(f"SELECT id, run, cents FROM {TABLE}"):  # noqa: S608
        history.write("row", id=id, run=run, cents=cents)
    ((past,),) = database.rows(PAST)
    history.write("run ended", complete=is_complete, past_generations=past)
