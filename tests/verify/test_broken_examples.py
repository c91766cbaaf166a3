"""Each server of examples/broken has its fault, and only what follows from it.

The checks here are a plain client's, one after the other, without the verifier: they are what the
verifier is measured by.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from examples.broken.catalog import FAULTS, SERVERS, summary
from examples.broken.payments import ALICE, BOB
from examples.broken.stale_reset import STALE_SECONDS
from tests.support.verified_apis import payments_target
from tests.verify.broken_api import BrokenApi

from oncekey.verify.raw_connection import Origin
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault

ROOT = Path(__file__).parents[2]
FORGED = ALICE[:-1] + ("0" if ALICE[-1] != "0" else "1")

Check = Callable[[BrokenApi], Awaitable[bool]]


async def concurrent_duplicates_run_once(api: BrokenApi) -> bool:
    await asyncio.gather(*(api.pay() for _ in range(5)))
    return api.effects() == 1


async def first_success_survives_a_duplicate(api: BrokenApi) -> bool:
    first = await api.pay_slowly()
    await api.while_running()
    api.provider_answers.set()
    return (await first).body == (await api.pay(seconds=5)).body


async def slow_payment_is_not_started_again(api: BrokenApi) -> bool:
    await api.pay_slowly()
    api.seconds = 60
    await api.while_running()
    return api.effects() == 1


async def client_that_left_gets_its_outcome(api: BrokenApi) -> bool:
    first = await api.pay(gone=True)
    again = await api.pay()
    return again.body == first.body and api.effects() == 1


async def another_body_is_refused(api: BrokenApi) -> bool:
    await api.pay()
    return (await api.pay(cents=900)).status == 422


async def refused_request_changes_nothing(api: BrokenApi) -> bool:
    first = await api.pay()
    await api.pay(cents=900)
    return (await api.pay()).body == first.body


async def another_body_is_refused_meanwhile(api: BrokenApi) -> bool:
    await api.pay_slowly()
    other = await api.while_running(cents=900)
    return other.done() and other.result().status == 422


async def another_path_gets_nothing_of_it(api: BrokenApi) -> bool:
    await api.pay()
    return (await api.pay(path="/refunds")).status == 422


async def another_caller_has_keys_of_its_own(api: BrokenApi) -> bool:
    first = await api.pay()
    other = await api.pay(token=BOB)
    return other.status == 201 and other.id != first.id and api.effects() == 2


async def forged_token_gets_nothing(api: BrokenApi) -> bool:
    before = await api.pay(token=FORGED, key="never used")
    await api.pay()
    return before.status == 401 == (await api.pay(token=FORGED)).status and api.effects() == 1


async def key_has_one_line(api: BrokenApi) -> bool:
    return (await api.pay(lines=["a", "b"])).status == 400 and api.effects() == 0


async def key_is_checked(api: BrokenApi) -> bool:
    wrong: list[list[str]] = [[], [""], ['""'], ["é"], ["k" * 256], ['"open'], ["a,b"]]
    return [(await api.pay(lines=lines)).status for lines in wrong] == [400] * len(wrong)


async def quotes_make_no_other_key(api: BrokenApi) -> bool:
    first = await api.pay(lines=['"key-1"'])
    return (await api.pay(lines=["key-1"])).body == first.body


async def replay_has_the_status(api: BrokenApi) -> bool:
    return (await api.pay()).status == 201 == (await api.pay()).status


async def replay_has_body_and_headers(api: BrokenApi) -> bool:
    first, again = await api.pay(), await api.pay()
    return (
        first.body == again.body
        and first.header("location") == again.header("location") is not None
        and first.header("content-type") == again.header("content-type")
        and first.header("x-idempotency-replayed") is None
        and again.header("x-idempotency-replayed") == "true"
    )


async def cookie_is_for_the_first_client(api: BrokenApi) -> bool:
    first, again = await api.pay(), await api.pay()
    return first.header("set-cookie") is not None and again.header("set-cookie") is None


async def declined_payment_is_declined_again(api: BrokenApi) -> bool:
    first, again = await api.pay(provider="declines"), await api.pay(provider="declines")
    return first.status == 402 and first.body == again.body and api.effects() == 1


async def broken_provider_is_not_asked_again(api: BrokenApi) -> bool:
    first, again = await api.pay(provider="breaks"), await api.pay(provider="breaks")
    return first.status == 502 and first.body == again.body and api.effects() == 1


async def empty_response_is_remembered(api: BrokenApi) -> bool:
    first, again = await api.pay(receipt="none"), await api.pay(receipt="none")
    return first.status == 204 and first.body == again.body == b"" and api.effects() == 1


async def large_response_is_remembered(api: BrokenApi) -> bool:
    first, again = await api.pay(receipt="long"), await api.pay(receipt="long")
    return len(first.body) > 2_000_000 and again.body == first.body and api.effects() == 1


CHECKS: list[Check] = [
    concurrent_duplicates_run_once,
    first_success_survives_a_duplicate,
    slow_payment_is_not_started_again,
    client_that_left_gets_its_outcome,
    another_body_is_refused,
    refused_request_changes_nothing,
    another_body_is_refused_meanwhile,
    another_path_gets_nothing_of_it,
    another_caller_has_keys_of_its_own,
    forged_token_gets_nothing,
    key_has_one_line,
    key_is_checked,
    quotes_make_no_other_key,
    replay_has_the_status,
    replay_has_body_and_headers,
    cookie_is_for_the_first_client,
    declined_payment_is_declined_again,
    broken_provider_is_not_asked_again,
    empty_response_is_remembered,
    large_response_is_remembered,
]

# Which checks fail, by server. Where it is more than one, the others follow from the fault.
FAILING: dict[str, set[Check]] = {
    "correct": set(),
    "race": {
        concurrent_duplicates_run_once,
        slow_payment_is_not_started_again,  # nothing says that the first one runs
        another_body_is_refused_meanwhile,
    },
    "stale-reset": {slow_payment_is_not_started_again},
    "failure-clobbers-success": {first_success_survives_a_duplicate},
    "mismatch-destroys-record": {refused_request_changes_nothing},
    "unscoped": {another_caller_has_keys_of_its_own},
    "body-not-compared": {another_body_is_refused, another_body_is_refused_meanwhile},
    "in-flight-before-mismatch": {another_body_is_refused_meanwhile},
    "rerun-on-204": {empty_response_is_remembered},
    "rerun-on-large": {large_response_is_remembered},
    "replay-before-auth": {forged_token_gets_nothing},
    "lost-on-disconnect": {client_that_left_gets_its_outcome},
    "status-lost": {replay_has_the_status},
    "cookies-replayed": {cookie_is_for_the_first_client},
    "header-lines-joined": {key_has_one_line},
    "success-without-effect": {broken_provider_is_not_asked_again},
}


async def _holds(check: Check, name: str) -> bool:
    held = await check(BrokenApi(name))
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return held


@pytest.mark.parametrize("name", SERVERS)
def test_each_server_has_its_fault_and_no_other(name: str) -> None:
    failing = {check for check in CHECKS if not asyncio.run(_holds(check, name))}
    assert failing == FAILING[name]


def test_every_check_fails_somewhere_or_holds_for_all() -> None:
    """The checks that no server fails are listed, so that none is forgotten."""
    untouched = {check for check in CHECKS if not any(check in set_ for set_ in FAILING.values())}
    assert untouched == {
        another_path_gets_nothing_of_it,
        key_is_checked,
        quotes_make_no_other_key,
        replay_has_body_and_headers,
        declined_payment_is_declined_again,
    }


def test_servers_are_named_as_the_verifier_names_their_faults() -> None:
    assert set(FAULTS) <= {fault.slug for fault in Fault}
    assert len(FAULTS) == 15


@pytest.mark.parametrize("name", FAULTS)
def test_each_module_says_what_is_wrong_where_it_comes_from_and_what_it_costs(name: str) -> None:
    module = sys.modules[FAULTS[name].__module__]
    text = str(module.__doc__)
    for part in ("What is wrong:", "Where it comes from:", "What it costs:", "How the verifier"):
        assert part in text, part
    assert len(summary(name)) < 100


def test_command_lists_the_servers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.broken", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SERVERS)


def test_target_file_has_the_tokens_and_every_variant_of_the_api() -> None:
    target = payments_target(Origin("http", "127.0.0.1", 8001))
    assert set(target.variants) == set(Variant)
    assert target.caller.headers == (("Authorization", f"Bearer {ALICE}"),)
    assert target.other_caller is not None
    assert target.other_caller.headers == (("Authorization", f"Bearer {BOB}"),)
    assert target.slow_seconds is not None
    assert target.slow_seconds > STALE_SECONDS
