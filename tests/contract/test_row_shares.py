"""What `make test` runs of a contract's product of rules, cases and rows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract import test_engine_contract as engines
from tests.contract import test_postgres_store_contract as postgres
from tests.contract import test_store_contract as stores
from tests.contract.planned_runs import is_left_to_soak, named_tests, plan_of, rows_of_rule
from tests.contract.row_shares import Plan, Rule, Shares, case_of, rules_of
from tests.contract.store_contract_rows import promises

COUNTS = {"claim": 3, "sweep": 1, "finish": 2, "replay": 5, "list": 1, "search": 4}
GROUPS = {"claim": "owners", "finish": "owners", "replay": "owners"}
RULES = [
    Rule(name, frozenset([GROUPS.get(name, "readers"), name[0]]), [(at,) for at in range(count)])
    for name, count in COUNTS.items()
]
SHARES = Shares(
    whole=("full",),
    dealt=(("sync", "async"),),
    one_case=(("ring", "locks"), ("portable",)),
    carriers=("pooler",),
)


def rows_of(plan: Plan, rule: str) -> set[str]:
    return {row for row, cases in plan[rule].items() if cases}


def cases_of(plan: Plan, rule: Rule, rows: tuple[str, ...]) -> list[Any]:
    return sorted(case for row in rows for case in plan[rule.name].get(row, ()))


def test_a_whole_row_runs_every_case() -> None:
    plan = SHARES.plan(RULES)
    assert all(plan[rule.name]["full"] == set(rule.cases) for rule in RULES)


def test_rows_that_are_dealt_run_every_case_together() -> None:
    plan = SHARES.plan(RULES)
    for rule in RULES:
        assert set(cases_of(plan, rule, ("sync", "async"))) == set(rule.cases)
    for row in ("sync", "async"):  # and neither runs all of a rule with many cases
        assert len(plan["replay"][row]) in (2, 3)


def test_rows_of_one_case_run_every_rule_and_not_all_cases() -> None:
    plan = SHARES.plan(RULES)
    assert all(cases_of(plan, rule, ("ring", "locks")) for rule in RULES)
    assert all(len(cases_of(plan, rule, ("portable",))) == 1 for rule in RULES)


def test_every_row_runs_a_rule_of_every_group() -> None:
    plan = SHARES.plan(RULES)
    groups = {group for rule in RULES for group in rule.groups}
    for row in SHARES.run:
        met = {group for rule in RULES if plan[rule.name].get(row) for group in rule.groups}
        assert met == groups
    assert sum(len(plan[rule.name].get("pooler", ())) for rule in RULES) <= len(groups)


def test_a_row_runs_no_rule_that_it_does_not_promise_and_another_of_the_same_group() -> None:
    def is_promised(row: str, rule: str) -> bool:
        return row != "pooler" or rule not in usual

    usual = {rule for rule in COUNTS if "pooler" in rows_of(SHARES.plan(RULES), rule)}
    plan = SHARES.plan(RULES, is_promised)
    chosen = {rule.name for rule in RULES if "pooler" in rows_of(plan, rule.name)}
    left = [rule for rule in RULES if rule.name not in usual]
    assert chosen.isdisjoint(usual)
    assert {group for rule in left for group in rule.groups} == {
        group for rule in left if rule.name in chosen for group in rule.groups
    }


def test_the_order_of_the_rules_changes_nothing() -> None:
    plan, other = SHARES.plan(RULES), SHARES.plan(RULES[::-1])
    for rule in COUNTS:
        assert rows_of(plan, rule) == rows_of(other, rule)
        assert all(plan[rule][row] == other[rule][row] for row in rows_of(plan, rule))


def test_the_shares_are_the_same_in_every_process() -> None:
    plan = SHARES.plan(RULES)
    shares = {row: [sorted(plan[rule].get(row, ())) for rule in COUNTS] for row in SHARES.run}
    assert shares["async"] == [[(0,), (2,)], [], [(1,)], [(1,), (3,)], [(0,)], [(0,), (2,)]]
    assert shares["pooler"] == [[(0,)], [(0,)], [(0,)], [(2,)], [(0,)], []]


def test_a_new_rule_of_its_own_group_leaves_the_others_where_they_are() -> None:
    new = Rule("bind", frozenset(["settings"]), [(0,)])
    plan, other = SHARES.plan(RULES), SHARES.plan([new, *RULES])
    assert rows_of(other, "bind") == set(SHARES.run)
    assert all(plan[rule][row] == other[rule][row] for rule in COUNTS for row in SHARES.run)


@pytest.mark.parametrize("one", [1.5, None], ids=str)
@pytest.mark.parametrize(("two", "three"), [(False, False), (False, True)])
def example(one: object, two: bool, three: bool) -> None:
    """A rule with six values in four cases."""


@pytest.mark.parametrize("case", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_case_is_known_by_its_values(case: tuple[int, int]) -> None:
    two, three = [(False, False), (False, True)][case[0]]
    params = {"kind": "memory", "one": [1.5, None][case[1]], "two": two, "three": three}
    assert case_of(example, params) == case


# --- the contracts -------------------------------------------------------------------------------

CONTRACTS: list[Any] = [
    stores.TestStoreContract,
    postgres.TestStoreContract,
    engines.TestEngineContract,
]
MODULES: dict[Any, Any] = dict(zip(CONTRACTS, [stores, postgres, engines], strict=True))
each_contract = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda each: each.__module__)


@each_contract
def test_every_row_of_the_table_has_one_place(contract: Any) -> None:
    shares = MODULES[contract].SHARES
    assert sorted([*shares.run, *shares.soak_only]) == sorted(MODULES[contract].ROWS)


@each_contract
def test_every_rule_runs_on_every_store_with_code_of_its_own(contract: Any) -> None:
    plan = plan_of(contract)
    for rows in MODULES[contract].SHARES.stores:
        missing = {
            rule.name
            for rule in rules_of(contract)
            if not rows_of(plan, rule.name) & set(rows) and promises(rows[0], rule.name)
        }
        assert not missing


# A word in the name of its rows -> the contract of a store.
FAMILIES = {
    **dict.fromkeys(["memory", "sqlite", "redis", "etcd"], stores.TestStoreContract),
    "postgres": postgres.TestStoreContract,
}


@pytest.mark.parametrize("word", FAMILIES)
def test_every_case_of_the_store_contract_runs_on_every_kind_of_store(word: str) -> None:
    plan = plan_of(FAMILIES[word])
    for rule in rules_of(FAMILIES[word]):
        rows = tuple(row for row in plan[rule.name] if row.startswith(word))
        assert set(cases_of(plan, rule, rows)) == set(rule.cases)


def test_both_engines_keep_every_rule_with_every_case() -> None:
    plan = plan_of(engines.TestEngineContract)
    for rule in rules_of(engines.TestEngineContract):
        assert plan[rule.name]["memory-sync"] == plan[rule.name]["memory-async"] == set(rule.cases)


@each_contract
def test_every_row_meets_every_group_of_the_contract(contract: Any) -> None:
    plan, rules = plan_of(contract), rules_of(contract)
    for row in MODULES[contract].SHARES.run:
        kept = [rule for rule in rules if promises(row, rule.name)]
        met = {group for rule in kept if plan[rule.name].get(row) for group in rule.groups}
        assert met == {group for rule in kept for group in rule.groups}


@each_contract
def test_a_soak_runs_every_case_in_every_row(
    contract: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEKEY_SOAK", "1")
    for rule in rules_of(contract):
        rows = [row for row in MODULES[contract].ROWS if promises(row, rule.name)]
        assert rows_of_rule(contract, rule.name, ()) == rows
        assert not is_left_to_soak(contract, rule.name, {"kind": rows[-1]}, ())


RACE = "test_s9_many_threads_claim_the_same_new_keys_while_the_clock_moves"


def test_a_test_that_is_named_by_its_id_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEKEY_SOAK", raising=False)
    file = "tests/contract/test_postgres_store_contract.py"
    named = named_tests([f"{file}::TestStoreContract::{RACE}[postgres-psycopg-pooler]", "tests"])
    assert named == {RACE}
    contract = postgres.TestStoreContract
    row = {"kind": "postgres-psycopg-pooler"}
    assert row["kind"] in rows_of_rule(contract, RACE, named)
    assert not is_left_to_soak(contract, RACE, row, named)
    assert row["kind"] not in rows_of_rule(contract, RACE, ())
    assert is_left_to_soak(contract, RACE, row, ())


def test_a_class_that_is_named_is_no_named_test() -> None:
    file = "tests/contract/test_store_contract.py"
    assert named_tests([f"{file}::TestStoreContract", file, "-k", "memory"]) == set()
