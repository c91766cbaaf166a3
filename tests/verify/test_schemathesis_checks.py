"""The checks for schemathesis: one verdict per operation, with the verifier's own fault names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from examples.broken.payments import ALICE
from tests.docs.pages import DOCS, files
from tests.support.verified_apis import served_broken

from oncekey.verify.profile import PROFILE_DEFAULT, STRIPE
from oncekey.verify.verdict import Guarantee, Status

BODY: dict[str, Any] = {"order": "book-1", "cents": 500}
OTHER_BODY = "idempotency_other_body_after"


@pytest.fixture
def checks() -> Iterator[Any]:
    from oncekey.verify import schemathesis_checks

    schemathesis_checks.configure()
    yield schemathesis_checks
    schemathesis_checks.configure(
        profile=PROFILE_DEFAULT, strict=False, other_caller=None, effects=None
    )


def named(checks: Any, *names: str) -> list[Any]:
    return [check for check in checks.CHECKS if check.__name__ in names]


def call(url: str, path: str, wanted: list[Any]) -> None:
    """Send one request to an operation, and validate its response by these checks."""
    import schemathesis

    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
    case = operation.Case(body=dict(BODY), media_type="application/json")
    headers = {"Authorization": f"Bearer {ALICE}", "Idempotency-Key": "first"}
    case.call_and_validate(headers=headers, checks=wanted)


def run_on(name: str, wanted: list[Any], *, times: int = 1, path: str = "/payments") -> None:
    async def main() -> None:
        async with served_broken(name) as target:
            for _ in range(times):
                await asyncio.to_thread(call, str(target.origin), path, wanted)

    asyncio.run(main())


def test_each_guarantee_has_a_check_with_its_name(checks: Any) -> None:
    names = {check.__name__ for check in checks.CHECKS}
    assert names == {"idempotency_" + one.slug.replace("-", "_") for one in Guarantee}


def test_a_fault_is_named_with_its_cause_and_its_curl_lines(checks: Any) -> None:
    with pytest.raises(BaseException) as caught:
        run_on("body-not-compared", named(checks, OTHER_BODY))
    text = "\n".join(str(part) for part in _leaves(caught.value))
    assert "body-not-compared" in text
    assert "curl -i -X POST" in text
    assert "How to mend it: Store a hash of method, path and body" in text
    assert ALICE not in text


def test_a_violated_operation_fails_again_for_each_later_request(checks: Any) -> None:
    async def main() -> int:
        failures = 0
        async with served_broken("body-not-compared") as target:
            for _ in range(2):
                with contextlib.suppress(BaseExceptionGroup, AssertionError):
                    await asyncio.to_thread(
                        call, str(target.origin), "/payments", named(checks, OTHER_BODY)
                    )
                    continue
                failures += 1
        return failures

    assert asyncio.run(main()) == 2
    assert len(checks.verdicts()) == 1


def test_a_correct_api_passes_and_is_probed_once(checks: Any) -> None:
    wanted = named(checks, OTHER_BODY, "idempotency_replay_fidelity")
    run_on("correct", wanted, times=3)
    verdicts = list(checks.verdicts().values())
    assert [verdict.status for verdict in verdicts] == [Status.HOLDS] * 2


def test_a_profile_may_leave_a_guarantee_out(checks: Any) -> None:
    checks.configure(profile=STRIPE)
    run_on("correct", named(checks, "idempotency_missing_key"))
    assert checks.verdicts() == {}


def test_effects_are_counted_by_ids_if_nothing_else_is_said(checks: Any) -> None:
    with pytest.raises(BaseException) as caught:
        run_on("race", named(checks, "idempotency_concurrent_duplicates"))
    assert "check-then-act race (race)" in str(_leaves(caught.value))


def test_what_cannot_be_observed_passes_unless_the_checks_are_strict(checks: Any) -> None:
    wanted = named(checks, "idempotency_slow_handler")
    run_on("correct", wanted)
    checks.configure(strict=True)
    with pytest.raises(BaseException) as caught:
        run_on("correct", wanted)
    assert "not observable, because there is no slow request" in str(_leaves(caught.value))


def test_a_request_that_breaks_the_schema_is_not_probed_with(checks: Any) -> None:
    from schemathesis import GenerationMode

    (check,) = named(checks, OTHER_BODY)
    negative = SimpleNamespace(generation=SimpleNamespace(mode=GenerationMode.NEGATIVE))
    header = SimpleNamespace(location=SimpleNamespace(value="header"), name="Idempotency-Key")
    operation = SimpleNamespace(iter_parameters=lambda: [header])
    case = SimpleNamespace(operation=operation, method="POST", meta=negative)
    assert check(None, SimpleNamespace(status_code=201), case) is True
    assert checks.verdicts() == {}


def test_the_hooks_file_of_the_page_configures_the_checks(
    checks: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    exec(files(DOCS / "how-to" / "verify-openapi.md")["hooks.py"], {})
    checks.configure(effects=None)  # nobody listens at the counter's address
    run_on("correct", named(checks, "idempotency_slow_handler"))
    (show,) = at_exit
    show()
    printed = capsys.readouterr().out
    assert printed == "not observable  POST /payments  slow-handler  there is no slow request\n"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
