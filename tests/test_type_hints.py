"""What a type checker makes of the public API: guarded functions keep their signatures, and options
are known by name and type. One run of mypy over a file with what it must say beside each line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from oncekey.core.policy import OPTION_NAMES, PolicyOptions
from oncekey.http.rules import Rule, RuleOptions

ROOT = Path(__file__).parent.parent

# In a comment: what mypy says of the line. "-> " is a revealed type, "! " an error.
CHECKED = """
from oncekey import AsyncAttempt, AsyncOnce, Attempt, Once
from oncekey.http.flask import idempotent

once = Once("memory://")
aonce = AsyncOnce("memory://")


@once.guard("charge", key=lambda order, cents: order, lease="5s")
def charge(order: str, cents: int) -> dict[str, int]:
    return {order: cents}


@once.guard("checkout", key=lambda cart, *, gift: cart, retry_safe=True)
def attempt_first(attempt: Attempt, cart: str, *, gift: bool) -> int:
    return attempt.fence


@once.guard("checkout by name", key=lambda cart: cart)
def attempt_by_name(cart: str, *, attempt: Attempt) -> int:
    return attempt.fence


@aonce.guard("charge", key=lambda order, cents: order)
async def acharge(order: str, cents: int) -> dict[str, int]:
    return {order: cents}


@aonce.guard("checkout", key=lambda cart: cart)
async def aattempt_first(attempt: AsyncAttempt, cart: str) -> int:
    return attempt.fence


@aonce.guard("checkout by name", key=lambda cart: cart)
async def aattempt_by_name(cart: str, *, attempt: AsyncAttempt) -> int:
    return attempt.fence


class Shop:
    @once.guard("sell", key=lambda shop, item: item)
    def sell(self, item: str) -> int:
        return 1

    @once.guard("order", key=lambda shop, item: item)
    def order(self, attempt: Attempt, item: str) -> int:
        return attempt.fence

    @once.guard("return", key=lambda shop, item: item)
    def give_back(self, item: str, *, attempt: Attempt) -> int:
        return attempt.fence


@once.operation("ship", retry_safe=True, tries=3)
def ship(attempt: Attempt, request: dict[str, str]) -> int:
    return attempt.fence


def use() -> None:
    reveal_type(charge)  # -> def (order: str, cents: int) -> dict[str, int]
    reveal_type(attempt_first)  # -> def (cart: str, *, gift: bool) -> int
    reveal_type(attempt_by_name("cart"))  # -> int
    reveal_type(Shop().sell)  # -> def (item: str) -> int
    reveal_type(Shop().order("book"))  # -> int
    reveal_type(Shop().give_back("book"))  # -> int
    reveal_type(once.run("op", "k", lambda attempt: attempt.fence).value)  # -> int
    reveal_type(ship.run("order-17", {"to": "x"}).value)  # -> int
    charge("order-17", "500")  # ! "charge" has incompatible type "str"; expected "int"
    charge("order-17")  # ! Missing positional argument "cents"
    attempt_first("cart")  # ! Missing named argument "gift"
    once.run("op", "k", lambda attempt: 1, leese="5s")  # ! Unexpected keyword argument "leese"
    once.run("op", "k", lambda attempt: 1, retry_safe="yes")  # ! expected "bool"
    once.guard("op", key=str, max_bytes="1 MB")  # ! expected "int"
    once.operation("op", ttl="5s")  # ! Unexpected keyword argument "ttl"
    once.in_transaction(0).run("op", "k", lambda attempt: 1, wait=5)  # ! "timedelta | str"
    idempotent(keep=5)  # ! expected "timedelta | str | None"
    idempotent(ttl="5s")  # ! Unexpected keyword argument "ttl"


async def use_async() -> None:
    reveal_type(await acharge("order-17", 500))  # -> dict[str, int]
    reveal_type(await aattempt_first("cart"))  # -> int
    reveal_type(await aattempt_by_name("cart"))  # -> int
    acharge("order-17", "500")  # ! "acharge" has incompatible type "str"; expected "int"
    await aonce.run("op", "k", aattempt_by_name, keep=5)  # ! expected "timedelta | str"
"""


def test_mypy_sees_signatures_results_and_options(tmp_path: Path) -> None:
    checked = tmp_path / "checked.py"
    checked.write_text(CHECKED)
    options = ["--strict", "--no-error-summary", "--follow-imports=silent", "--config-file="]
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"
    # In a process of its own: mypy changes the interpreter's recursion limit for good.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, cache, str(checked)],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stderr == ""
    said: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        found = re.match(r".*checked\.py:(\d+): (?:error|note): (.*)", line)
        assert found, line
        said.setdefault(int(found[1]), []).append(found[2])
    for number, text in enumerate(CHECKED.splitlines(), 1):
        wanted = re.search(r"  # (->|!) (.*)", text)
        told = said.pop(number, [])
        if wanted is None:
            assert told == [], f"{text}: {told}"
        elif wanted[1] == "->":
            assert told == [f'Revealed type is "{wanted[2]}"'], text
        else:
            assert any(wanted[2] in one for one in told), f"{text}: {told}"
    assert said == {}


def test_the_typed_options_are_the_fields_of_a_policy_and_of_a_rule() -> None:
    assert tuple(get_type_hints(PolicyOptions)) == OPTION_NAMES
    of_rule = [one.name for one in fields(Rule) if one.init and one.name != "path"]
    assert list(get_type_hints(RuleOptions)) == of_rule
