"""What must catch each of the twelve mutants: a test of the contract, and a rule of the hammer.

The explorer catches a mutant by the invariant in its definition. The contract and the hammer know
some bugs by another name: two owners of one key break I1, and the first thing that their log shows
are leases that overlap (I5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.mutants.contract_tool import ENGINE_TESTS, STORE_TESTS
from tests.support.mutants.core_mutants import MUTANTS, Mutant
from tests.support.mutants.sql_mutants import M11, SQLMutant

ALL_TWELVE: Final[tuple[Mutant | SQLMutant, ...]] = tuple(
    sorted([*MUTANTS, M11], key=lambda mutant: int(mutant.number[1:]))
)
# The rows of the contract that a mutant runs on: those that use the code which it changes.
ROWS: Final = ("memory-sync", "memory-async", "sqlite-sync", "sqlite-async")
ROWS_ON_POSTGRES: Final = ("postgres-psycopg-ring",)


@dataclass(frozen=True)
class Expected:
    """A test of the contract with its cheapest row and case, and a rule of the hammer's checker."""

    test: str
    case: str
    rule: str
    file: str = STORE_TESTS

    @property
    def test_id(self) -> str:
        """The test as pytest names it."""
        suite = "TestEngineContract" if self.file == ENGINE_TESTS else "TestStoreContract"
        return f"{self.file}::{suite}::{self.test}[{self.case}]"


EXPECTED: Final = {
    "m1": Expected("test_i2_an_overtaken_owner_is_told_lost", "memory-sync-0", "i2_"),
    "m2": Expected(
        "test_i2_a_finish_never_changes_another_one", "memory-sync-2-3",
        "i2_one_outcome_per_generation",
    ),
    "m3": Expected(
        "test_s1_a_store_on_the_same_data_comes_in_between_two_takeovers", "sqlite-sync-2",
        "i5_leases_never_overlap",
    ),
    "m4": Expected(
        "test_i7_a_mismatch_is_decided_before_anything_else", "memory-sync-1",
        "i7_mismatch_exactly_when_it_differs",
    ),
    "m5": Expected(
        "test_s3_one_decision_reads_one_time", "sqlite-sync", "i14_a_living_owner_is_accepted"
    ),
    "m6": Expected(
        "test_i1_an_error_of_a_body_that_is_not_retry_safe_is_stored", "memory-sync",
        "i1_an_error_frees_only_what_is_retry_safe", ENGINE_TESTS,
    ),
    "m7": Expected(
        "test_i6_the_fence_grows_across_a_sweep_and_a_clock_that_stepped_back", "memory-sync-1",
        "i6_fences_are_unique_and_grow",
    ),
    "m8": Expected(
        "test_i12_the_sweeper_takes_a_record_after_its_audit_and_never_before", "memory-sync-1",
        "i12_a_fresh_start_only_after_expiry",
    ),
    "m9": Expected(
        "test_i7_a_mismatching_claim_takes_nothing_over", "memory-sync",
        "i7_rejections_leave_no_note",
    ),
    "m10": Expected(
        "test_i13_a_result_is_stored_before_its_caller_has_it", "memory-sync-Fault.VANISH",
        "i13_results_are_stored_first", ENGINE_TESTS,
    ),
    "m11": Expected(
        "test_s9_many_threads_claim_the_same_new_keys_while_the_clock_moves",
        "postgres-psycopg-ring", "i5_leases_never_overlap",
    ),
    "m12": Expected(
        "test_i5_a_late_start_renews_its_claim_before_the_body_begins", "memory-sync",
        "i5_owners_count_from_the_sending", ENGINE_TESTS,
    ),
}  # fmt: skip
