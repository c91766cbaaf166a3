"""Mutants that are none: their edits change the text and nothing that it does.

No tool may catch them. If one did, what it says of the others would prove nothing.
"""

from __future__ import annotations

from typing import Final

from tests.support.explorer.mutation import Edit
from tests.support.explorer.postgres_race_schema import RING, Setup
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.sql_mutants import SQLMutant

from oncekey.core import attempt_flow, state_machine
from oncekey.stores.sqlite import program

NO_OPS: Final[tuple[Mutant | SQLMutant, ...]] = (
    Mutant(
        "n1", "nothing is wrong in the core", state_machine,
        (
            Edit("return now >= record.expires_at", "return record.expires_at <= now"),
            Edit("return now < record.lease_until", "return not record.lease_until <= now"),
        ),
        "fenced, three attempts", "-",
        drivers=(
            (attempt_flow, Edit("isinstance(error, NotStarted) or times.retry_safe",
                                "times.retry_safe or isinstance(error, NotStarted)")),
            (program, Edit("yield COMMIT if writes else ROLLBACK",
                           "yield ROLLBACK if not writes else COMMIT")),
        ),
    ),
    SQLMutant(
        "n2", "nothing is wrong in the SQL",
        Setup(RING, edits=(
            Edit("IF v_try > 1 OR (p_how = 0 AND p_slots = 1) THEN",
                 "IF (p_slots = 1 AND p_how = 0) OR 1 < v_try THEN"),
        )),
        "a new key", "-",
    ),
)  # fmt: skip
