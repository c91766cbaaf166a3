"""What a run of pytest takes of a contract: the whole product with `ONCEKEY_SOAK`, or the shares of
its rows. A test that the command line names by its id runs in every row, with every case."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.contract.row_shares import Plan, Shares, case_of, rules_of
from tests.contract.store_contract_rows import promises


def named_tests(arguments: Sequence[str]) -> set[str]:
    """Return the tests that pytest's arguments name by their ids."""
    ids = [argument.partition("[")[0].split("::")[-1] for argument in arguments if "::" in argument]
    return {id for id in ids if id.startswith("test_")}


def rows_of_rule(contract: Any, rule: str, named: Collection[str]) -> list[str]:
    """Return the rows in which some case of a rule runs. What is left out here need not be
    collected by every process of a run."""
    rows = sys.modules[contract.__module__].ROWS
    if _is_whole(rule, named):
        return [row for row in rows if promises(row, rule)]
    planned = plan_of(contract)[rule]
    return [row for row in rows if planned.get(row)]


def is_left_to_soak(
    contract: Any, rule: str, params: Mapping[str, Any], named: Collection[str]
) -> bool:
    """True if `make test` leaves out the case of a rule that has these parameters."""
    if _is_whole(rule, named):
        return False
    planned = plan_of(contract)[rule].get(params["kind"], ())
    return case_of(getattr(contract, rule), params) not in planned


@functools.cache
def plan_of(contract: Any) -> Plan:
    """Return what `make test` runs of a contract."""
    shares: Shares = sys.modules[contract.__module__].SHARES
    return shares.plan(rules_of(contract), promises)


def _is_whole(rule: str, named: Collection[str]) -> bool:
    return bool(os.environ.get("ONCEKEY_SOAK")) or rule in named
