"""What must catch each of the twelve mutants: a test of the contract, and a rule of the hammer.

The explorer catches a mutant by the invariant in its definition. The contract and the hammer know
some bugs by another name: a key with two records runs twice (I1), and the log shows that the second
was started anew while the first had not expired (I12).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.mutants.contract_tool import CHEAP_TESTS, POSTGRES_TESTS, ContractRun, run_tests
from tests.support.mutants.core_mutants import MUTANTS, Mutant
from tests.support.mutants.sql_mutants import M11, SQLMutant

ALL_TWELVE: Final[tuple[Mutant | SQLMutant, ...]] = tuple(
    sorted([*MUTANTS, M11], key=lambda mutant: int(mutant.number[1:]))
)
# The rows of the contract that a mutant runs on: those that use the code which it changes.
ROWS: Final = ("memory-sync", "memory-async", "sqlite-sync", "sqlite-async")
ROWS_ON_POSTGRES: Final = ("postgres-psycopg-ring",)

_MEMORY: Final = "TestMemoryStore"
_SQLITE: Final = "TestSQLiteStore"
_ENGINE: Final = "TestMemoryEngine"


@dataclass(frozen=True)
class Expected:
    """A test of the contract, and a rule of the hammer's checker. `suite` and `case` are the
    cheapest way to run the test: a class of contract_rows, and the case of its parameters."""

    test: str
    rule: str
    suite: str = _MEMORY
    case: str = ""
    tries: int = 1  # more if the test is a race, which a busy machine may run one after the other

    @property
    def test_id(self) -> str:
        """The test as pytest names it."""
        name = f"{self.test}[{self.case}]" if self.case else self.test
        file = POSTGRES_TESTS if self.suite == "TestStoreContract" else CHEAP_TESTS
        return f"{file}::{self.suite}::{name}"


def run_expected(mutant: Mutant | SQLMutant) -> ContractRun:
    """Run the test that must catch this mutant, until it fails or was tried often enough."""
    expected = EXPECTED[mutant.number]
    run = run_tests(mutant, [expected.test_id])
    for _ in range(expected.tries - 1):
        if run.failed:
            break
        run = run_tests(mutant, [expected.test_id])
    return run


EXPECTED: Final = {
    "m1": Expected("test_i2_an_overtaken_owner_is_told_lost", "i2_", case="0"),
    "m2": Expected(
        "test_i2_a_finish_never_changes_another_one",
        "i2_one_outcome_per_generation",
        case="2-3",
    ),
    "m3": Expected(
        "test_s1_a_store_on_the_same_data_comes_in_between_two_takeovers",
        "i5_leases_never_overlap",
        suite=_SQLITE,
        case="2",
    ),
    "m4": Expected(
        "test_i7_a_mismatch_is_decided_before_anything_else",
        "i7_mismatch_exactly_when_it_differs",
        case="1",
    ),
    "m5": Expected(
        "test_s3_one_decision_reads_one_time", "i14_a_living_owner_is_accepted", suite=_SQLITE
    ),
    "m6": Expected(
        "test_i1_an_error_of_a_body_that_is_not_retry_safe_is_stored",
        "i1_an_error_frees_only_what_is_retry_safe",
        suite=_ENGINE,
    ),
    "m7": Expected(
        "test_i6_the_fence_grows_across_a_sweep_and_a_clock_that_stepped_back",
        "i6_fences_are_unique_and_grow",
        case="1",
    ),
    "m8": Expected(
        "test_i12_the_sweeper_takes_a_record_after_its_audit_and_never_before",
        "i12_a_fresh_start_only_after_expiry",
        case="1",
    ),
    "m9": Expected("test_i7_a_mismatching_claim_takes_nothing_over", "i7_rejections_leave_no_note"),
    "m10": Expected(
        "test_i13_a_result_is_stored_before_its_caller_has_it",
        "i13_results_are_stored_first",
        suite=_ENGINE,
        case="Fault.VANISH",
    ),
    "m11": Expected(
        "test_s9_many_threads_claim_the_same_new_keys_while_the_clock_moves",
        "i12_a_fresh_start_only_after_expiry",
        suite="TestStoreContract",
        case="postgres-psycopg-ring",
        tries=6,
    ),
    "m12": Expected(
        "test_i5_a_late_start_renews_its_claim_before_the_body_begins",
        "i5_owners_count_from_the_sending",
        suite=_ENGINE,
    ),
}
