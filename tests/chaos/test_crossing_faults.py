"""The faults in which two parts meet happen in a run, and nothing is violated.

One short run has each of them once. Each asks the clients for operations and waits until it has met
them, so what is asserted here does not depend on luck. The run is in this process, on plain folders
instead of small disks, and takes the node of RabbitMQ that the tests share.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.chaos.chaos_plan import ChaosOptions, make_plan
from tests.support.chaos.chaos_run import run
from tests.support.chaos.invariant_rules import check
from tests.support.chaos.operation_history import RunHistory, read_history
from tests.support.chaos.run_summary import as_text, summarize
from tests.support.chaos.violation_story import stories
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import Postgres, RedisServer, Uvicorn, require

KINDS = (
    "detached standby promoted",
    "app commits refused",
    "app sessions ended at commit",
    "broker of the same name",
    "consumers cancelled",
    "new store not durable",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> RunHistory:
    """What happened in a run that has each of these faults once. Of the two consumers of RabbitMQ
    one is of threads, and one of tasks."""
    require(Postgres)
    require(RedisServer)
    require(lambda: Uvicorn("x:y"))
    few = ChaosOptions(1, seconds=4, rate=5, workers=1, consumers=2)
    plan = make_plan(replace(few, kinds=KINDS, faults=len(KINDS)))
    return read_history(run(plan, tmp_path_factory.mktemp("chaos") / "run.log", rabbitmq()))


# What each promises is tested elsewhere; that chaos has these faults, `make chaos` shows too.
pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]


def test_each_fault_happens_once_and_violates_nothing(history: RunHistory) -> None:
    violations = check(history)
    assert not violations, "\n\n".join(stories(violations, history))
    summary = summarize(history, violations)
    assert summary["faults by kind"] == dict.fromkeys(KINDS, 1)
    assert set(summary["levels"]) >= {"late", "moved", "queue"}
    told = as_text(summary)
    assert all(f"{kind} 1" in told for kind in KINDS)


def refused_within(history: RunHistory, store: str, level: str) -> list[str]:
    """The operations of a level that were refused while a store had lost its protection: by 503,
    or by 500 where a worker has not reached its store before."""
    (span,) = [one for one in history.unprotected if one["store"] == store]
    return [
        operation.id
        for operation in history.operations.values()
        if operation.level == level
        and any(
            one.status in (500, 503) and span["at"] <= one.sent <= span["until"]
            for one in operation.tries.values()
        )
    ]


def test_nothing_runs_while_a_standby_is_detached_that_will_be_promoted(
    history: RunHistory,
) -> None:
    for level in ("once", "late", "transactional"):
        assert refused_within(history, "database", level)
    assert any(level == "best_effort" for level, _ in history.guarantees)


def test_nothing_runs_while_the_store_that_keys_move_to_is_not_durable(
    history: RunHistory,
) -> None:
    assert refused_within(history, "new store", "moved")


def test_commits_fail_after_the_handler_and_no_success_is_told_of_them(
    history: RunHistory,
) -> None:
    late = [one for one in history.operations.values() if one.level == "late"]
    failed = [one for one in late if one.ends and not one.rows]
    assert failed
    assert history.commits_failed >= 2
    assert not [one.id for one in failed if list(one.successes())]


def test_a_consumer_of_another_broker_is_refused_and_its_messages_stay(
    history: RunHistory,
) -> None:
    (refusal,) = [one for one in history.refusals if one["by"] == "stranger"]
    assert "belong to the broker" in refusal["text"]
    messages = [one for one in history.operations.values() if one.scope == "second"]
    assert messages
    assert [len(one.effects) for one in messages] == [1] * len(messages)
    assert all(begin["by"] == "second" for one in messages for begin in one.begins)


def test_a_broker_cancels_its_consumers_while_messages_are_handled(history: RunHistory) -> None:
    assert any("ended the subscription" in one["text"] for one in history.logs)
    parcels = [one for one in history.operations.values() if one.scope == "parcel"]
    assert len(parcels) >= 3
    assert [len(one.effects) for one in parcels] == [1] * len(parcels)
