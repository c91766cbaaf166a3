"""Which tests of a contract `make test` leaves to `make soak`, row by row.

A contract is a product of rules, the cases of a rule, and rows (a store, opened in one way). Rows
that share the code which decides differ in what carries a command there: the driver, a pooler, the
server's version, a thread or an event loop. A module of tests says with `Shares` which rows these
are, and `make test` runs

* in a whole row, every case of every rule;
* in rows that are dealt, every case of every rule in one of them;
* in rows of one case, every rule in one of them, with one of its cases. Other such rows, of another
  store or setting, take other cases;
* in every row, a rule of each group at least: of each class of the contract, and of each S- and
  I-number that rules cite. The rows that are only carriers of commands run no more.

So every rule meets every store, and every row every group; what is left out are triples of rule,
case and row. A sum over the names decides which, so that a new rule leaves the others where they
are.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# A case: which value it has of each parametrize, by number.
Case = tuple[int, ...]
# rule -> row -> the cases that run there
Plan = Mapping[str, Mapping[str, set[Case]]]
# (row, rule) -> whether the row promises what the rule asks for
Promises = Callable[[str, str], bool]

_CITED = re.compile(r"test_([si]\d+)_")


class Rule(NamedTuple):
    """What the shares need to know of a rule."""

    name: str
    groups: frozenset[str]
    cases: Sequence[Case]


@dataclass(frozen=True)
class Shares:
    """The rows of a module, each of them in one of these places."""

    whole: Sequence[str]
    dealt: Sequence[tuple[str, ...]] = ()
    one_case: Sequence[tuple[str, ...]] = ()
    carriers: Sequence[str] = ()
    soak_only: Sequence[str] = ()

    @property
    def run(self) -> list[str]:
        """The rows of which `make test` runs something."""
        several = itertools.chain.from_iterable([*self.dealt, *self.one_case])
        return [*self.whole, *several, *self.carriers]

    @property
    def stores(self) -> list[tuple[str, ...]]:
        """Rows with code of their own, together with those that share it: each runs every rule."""
        return [*((row,) for row in self.whole), *self.dealt, *self.one_case]

    def plan(self, rules: Sequence[Rule], promises: Promises = lambda row, rule: True) -> Plan:
        """Return what `make test` runs. A row runs the rules that it promises to keep."""
        plan: dict[str, dict[str, set[Case]]] = defaultdict(lambda: defaultdict(set))
        for rule in rules:
            start = _sum(rule.name)
            for row in self.whole:
                plan[rule.name][row].update(rule.cases)
            for number, rows in enumerate(self.dealt):
                for at, case in enumerate(rule.cases, start + number):
                    plan[rule.name][rows[at % len(rows)]].add(case)
            for number, rows in enumerate(self.one_case):
                row = rows[(start + number) % len(rows)]
                plan[rule.name][row].add(_one_of(rule.cases, start // len(rows) + number))
        for row in self.run:
            for rule in (rule for rule in rules if not promises(row, rule.name)):
                plan[rule.name].pop(row, None)
            kept = [rule for rule in rules if promises(row, rule.name)]
            for rule in _first_of_missed_groups(row, kept, plan):
                plan[rule.name][row].add(_one_of(rule.cases, _sum(row, rule.name)))
        return plan


def _first_of_missed_groups(row: str, rules: Sequence[Rule], plan: Plan) -> list[Rule]:
    met = {group for rule in rules if plan[rule.name].get(row) for group in rule.groups}
    missed = {group for rule in rules for group in rule.groups} - met
    order = sorted(rules, key=lambda rule: _sum(row, rule.name))
    return [next(rule for rule in order if group in rule.groups) for group in missed]


def _one_of(cases: Sequence[Case], number: int) -> Case:
    return cases[number % len(cases)]


def _sum(*names: str) -> int:
    """A number that is the same in every process."""
    return zlib.crc32(" ".join(names).encode())


def rules_of(contract: type) -> list[Rule]:
    """Return the rules of a class of tests: its methods, with the cases that their marks name."""
    names = [name for name in dir(contract) if name.startswith("test_")]
    return [Rule(name, _groups(contract, name), _cases(getattr(contract, name))) for name in names]


def _groups(contract: type, name: str) -> frozenset[str]:
    home = next(each for each in contract.__mro__ if name in vars(each))
    return frozenset([home.__name__, *_CITED.findall(name)])


def _cases(test: Any) -> list[Case]:
    return list(itertools.product(*(range(len(values)) for _, values in _parameters(test))))


def case_of(test: Any, params: Mapping[str, object]) -> Case:
    """Return the case of a rule that pytest runs with these values."""
    return tuple(
        next(at for at, value in enumerate(values) if _is_same(value, [params[n] for n in names]))
        for names, values in _parameters(test)
    )


def _parameters(test: Any) -> list[tuple[list[str], list[Sequence[object]]]]:
    """The names and the values of each parametrize, as pytest takes them one after the other."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    found = []
    for names, values, *_ in (mark.args for mark in marks):
        several = [names] if isinstance(names, str) else list(names)
        found.append((several, [[value] if len(several) == 1 else value for value in values]))
    return found


def _is_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))
