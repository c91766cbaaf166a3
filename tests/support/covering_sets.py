"""Which tests `make test` leaves to `make soak`.

They are those with the mark `soak`, most of a large matrix, and some of servers.

A covering set of strength 1 has every value of every parameter, one of strength 2 every pair of
values. A matrix of two parameters is thinned to strength 1, where the second parameter only says
how the same code is reached; one of three and more to strength 2.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")

# The test, without its parameters -> the strength of the set that `make test` runs.
THINNED = {
    "tests/cli/test_cli_recover.py::test_recover_every_runs_until_a_signal": 1,
    "tests/client/test_client_journal_processes.py::"
    "test_a_killed_client_sends_the_same_key_after_a_restart": 1,
    "tests/engine/test_interrupted_runs.py::test_i14_a_run_interrupted_anywhere_closes_its_key": 2,
    "tests/engine/test_interrupted_tasks.py::"
    "test_i14_an_async_run_interrupted_anywhere_closes_its_key": 1,
    "tests/engine/test_usual_run.py::test_i1_an_engine_sends_what_the_flow_yields": 2,
    "tests/fault/test_etcd_worker_kills.py::"
    "test_i1_a_retry_after_a_kill_at_any_store_call_runs_once_on_etcd": 1,
    "tests/fault/test_postgres_worker_kills.py::"
    "test_i1_a_retry_after_a_kill_at_any_store_call_runs_once": 1,
    "tests/fault/test_sqlite_transaction_kills.py::"
    "test_i1_a_transaction_killed_before_any_statement_leaves_all_or_nothing": 1,
    "tests/fault/test_store_faults.py::TestStoreFaults::"
    "test_i9_a_lost_reply_to_any_command_is_repeated_and_runs_nothing_twice": 2,
    "tests/http/test_server_shutdown.py::"
    "test_i14_with_the_usual_grace_every_request_is_answered": 1,
    "tests/http/test_wsgi.py::test_i14_shutdown_waits_for_the_result_of_a_running_handler": 1,
    "tests/queues/test_outbox_senders.py::"
    "test_a_broker_that_is_down_refuses_nothing_and_gets_all_when_it_is_back": 1,
    "tests/queues/test_outbox_senders.py::"
    "test_a_message_that_was_sent_twice_runs_once_on_the_other_side": 1,
    "tests/stores/postgres/test_postgres_errors.py::"
    "test_statement_and_lock_timeout_apply_to_every_call": 1,
    "tests/stores/postgres/test_postgres_guarantee.py::"
    "test_i4_a_commit_no_standby_has_confirmed_is_not_acknowledged": 1,
    "tests/stores/postgres/test_postgres_unfinished.py::"
    "test_s10_listing_reads_only_recent_claims_and_one_page_at_most": 1,
    "tests/stores/postgres/test_postgres_unfinished.py::"
    "test_s10_pages_list_the_same_records_as_a_single_read": 2,
    "tests/stores/postgres/test_query_plans.py::test_no_statement_reads_the_whole_table": 1,
    "tests/stores/postgres/test_reconnect.py::test_a_callers_pool_survives_a_server_restart": 1,
    "tests/stores/postgres/test_reconnect.py::"
    "test_a_server_restart_between_two_calls_is_invisible": 1,
    "tests/stores/postgres/test_reconnect.py::"
    "test_a_server_that_stops_during_a_call_makes_it_ambiguous": 1,
    "tests/stores/postgres/test_ring_concurrency.py::"
    "test_i12_an_owners_open_transaction_keeps_its_slot_from_being_emptied": 1,
    "tests/stores/postgres/test_ring_concurrency.py::"
    "test_i14_an_owners_command_during_a_move_has_its_effect_after_it": 1,
    "tests/stores/postgres/test_ring_rotation.py::test_i12_a_record_stays_until_its_audit_ends": 1,
}

# Tests of the servers that tests start. What they prove is needed by the tests of a file that
# run in `make test`.
SERVER_TESTS = {
    f"tests/servers/{name}": needed_by
    for needed_by, names in {
        "tests/fault/test_etcd_members_lost.py": [
            "test_etcd_servers.py::test_a_killed_leader_is_replaced_and_rejoins",
            "test_etcd_servers.py::test_a_paused_member_does_not_stop_the_others",
            "test_etcd_servers.py::test_an_isolated_leader_takes_no_writes_until_it_is_healed",
        ],
        "tests/queues/test_kafka_groups.py": [
            "test_kafka_servers.py::test_a_killed_broker_keeps_messages_and_a_topic_can_be_deleted",
        ],
        "tests/queues/test_kafka_modern.py": [
            "test_kafka_servers.py::test_a_killed_broker_of_this_decade_keeps_messages_headers_and_topics",
        ],
        "tests/queues/test_kafka_headers.py": [
            "test_kafka_servers.py::test_the_mock_keeps_headers_and_knows_both_group_protocols",
            "test_kafka_servers.py::test_aiokafka_speaks_to_the_mock",
        ],
        "tests/fault/test_postgres_failover.py": [
            "test_servers.py::test_a_synchronous_standby_has_every_commit_and_can_be_promoted",
        ],
    }.items()
    for name in names
}


def left_to_soak(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items that `make test` leaves out."""
    if os.environ.get("ONCEKEY_SOAK"):
        return []
    matrices: dict[str, list[tuple[pytest.Item, Sequence[object]]]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_left = item.get_closest_marker("soak") is not None
        if name in THINNED and isinstance(item, pytest.Function) and not is_left:
            # The same object stands for the same value in every case.
            values = [id(value) for value in item.callspec.params.values()]
            matrices[name].append((item, values))
    left = [
        item
        for item in items
        if item.get_closest_marker("soak") or item.nodeid.partition("[")[0] in SERVER_TESTS
    ]
    for name, cases in matrices.items():
        kept = covering(cases, THINNED[name])
        left += [item for item, _ in cases if item not in kept]
    return left


def covering(cases: Sequence[tuple[Case, Sequence[object]]], strength: int) -> list[Case]:
    """Return cases that have every combination of `strength` values which occurs in any case.

    `cases` are pairs of a case and its values, one for each parameter. The choice is greedy, and
    the same in every run.
    """
    parts = {index: _combinations(values, strength) for index, (_, values) in enumerate(cases)}
    missing = set().union(*parts.values())
    chosen = set()
    while missing:
        best = max(parts, key=lambda index: (len(parts[index] & missing), -index))
        chosen.add(best)
        missing -= parts[best]
    return [case for index, (case, _) in enumerate(cases) if index in chosen]


def _combinations(values: Sequence[object], strength: int) -> set[tuple[tuple[int, object], ...]]:
    return set(itertools.combinations(enumerate(values), min(strength, len(values))))
