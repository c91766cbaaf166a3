"""What `make test` runs of a contract's product of rules, cases and rows."""

from __future__ import annotations

import pytest
from tests.contract import (
    test_engine_contract,
    test_postgres_store_contract,
    test_store_contract,
)
from tests.contract.row_shares import left_to_soak

CASES = {"claim": 3, "sweep": 1, "finish": 2, "replay": 5}
ROWS = ["full", "first", "second", "sync", "async"]
Triple = tuple[str, str, int]


@pytest.fixture
def run() -> set[Triple]:
    """What is run of a small contract in which two rows have one case and two rows are twins."""
    triples = {
        rule: {row: [(rule, row, case) for case in range(CASES[rule])] for row in ROWS}
        for rule in CASES
    }
    left = left_to_soak(triples, ["first", "second"], [("sync", "async")])
    everything = {
        triple for rows in triples.values() for cases in rows.values() for triple in cases
    }
    return everything - left


def test_a_row_with_code_of_its_own_runs_every_case(run: set[Triple]) -> None:
    assert {(rule, case) for rule, row, case in run if row == "full"} == {
        (rule, case) for rule in CASES for case in range(CASES[rule])
    }


def test_a_row_of_one_case_runs_every_rule_once(run: set[Triple]) -> None:
    for row in ("first", "second"):
        assert sorted(rule for rule, its_row, _ in run if its_row == row) == sorted(CASES)


def test_two_rows_of_one_case_run_different_cases(run: set[Triple]) -> None:
    taken = {(rule, row): case for rule, row, case in run if row in ("first", "second")}
    for rule in ("claim", "finish", "replay"):
        assert taken[rule, "first"] != taken[rule, "second"]


def test_every_rule_runs_in_one_of_two_twins_with_every_case(run: set[Triple]) -> None:
    for rule in CASES:
        rows = {row for its_rule, row, _ in run if its_rule == rule} & {"sync", "async"}
        assert len(rows) == 1
        assert len([one for one in run if one[0] == rule and one[1] in rows]) == CASES[rule]
    assert {row for _, row, _ in run} == set(ROWS)


def test_halves_share_every_case_and_swap_them_in_the_next_pair() -> None:
    pairs = [("first", "second"), ("sync", "async")]
    triples = {
        rule: {row: [(rule, row, case) for case in range(CASES[rule])] for row in ROWS}
        for rule in CASES
    }
    left = left_to_soak(triples, halves=pairs)
    for rule, count in CASES.items():
        for case in range(count):
            runs = [row for row in ROWS if (rule, row, case) not in left]
            assert runs in (["full", "first", "async"], ["full", "second", "sync"])


CONTRACTS = [test_store_contract, test_postgres_store_contract, test_engine_contract]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_rows_that_are_named_exist_and_are_run(contract: object) -> None:
    run = set(contract.ROWS) - contract.SOAK_ONLY  # type: ignore[attr-defined]
    pairs = [*getattr(contract, "TWINS", []), *getattr(contract, "HALVES", [])]
    named = [*getattr(contract, "ONE_CASE", []), *(row for pair in pairs for row in pair)]
    assert set(named) <= run
    assert run - set(named)  # some row runs everything
