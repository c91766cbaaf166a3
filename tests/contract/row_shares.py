"""Which tests of a contract `make test` leaves to `make soak`, row by row.

A contract is a product of rules, the cases of a rule, and rows (a store, opened in one way). Most
rows share the code that decides with another row, and differ in what carries a command there: the
driver, a pooler, the server's version, a thread or an event loop. `make test` runs

* in a row that shares its deciding code, every rule with one of its cases. The rows take different
  cases, and the row with the same code runs them all.
* in two rows that are twins, every other rule: the first row one half, the second the other.
* in two rows that are halves, every other case: they differ in one setting, and other halves have
  the same two values of it, so that a case of the first half here is one of the second half there.

So every rule meets every store, and every row a half of the rules or more; what is left out are
triples of rule, case and row. A module of tests names such rows `ONE_CASE`, `TWINS` and `HALVES`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

Test = TypeVar("Test")
# rule -> row -> the rule's cases in this row
Product = Mapping[str, Mapping[str, Sequence[Test]]]


def left_to_soak(
    product: Product[Test],
    one_case: Sequence[str] = (),
    twins: Sequence[tuple[str, str]] = (),
    halves: Sequence[tuple[str, str]] = (),
) -> set[Test]:
    """Return the tests that only `make soak` runs."""
    left: set[Test] = set()
    for number, rows in enumerate(product.values()):
        for row_number, row in enumerate(one_case):
            cases = rows.get(row, ())
            left.update(c for at, c in enumerate(cases) if at != (number + row_number) % len(cases))
        for pair in twins:
            left.update(rows.get(pair[number % 2], ()))
        for pair_number, pair in enumerate(halves):
            for side, row in enumerate(pair):
                numbered = enumerate(rows.get(row, ()), number + pair_number + side)
                left.update(case for at, case in numbered if at % 2)
    return left


def rows_of(names: Iterable[str], soak_only: Collection[str]) -> list[str]:
    """Return the parameters of a fixture `kind`: the rows, with those of `make soak` only there.
    Left out here, they need not be collected by every process of a run."""
    is_soak = bool(os.environ.get("ONCEKEY_SOAK"))
    return [name for name in names if is_soak or name not in soak_only]
