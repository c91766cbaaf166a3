"""The demo's API does what its OpenAPI document says, checked with generated requests."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from oncekey.demo.cards import Card

if TYPE_CHECKING:
    from tests.demo.conftest import Running

EXAMPLES = 12
TROUBLE = (Card.SLOW, Card.FLAKY, Card.STUCK, Card.DECLINED)
OPERATIONS = [
    ("GET", "/charges"),
    ("GET", "/ledger"),
    ("GET", "/accounts/me"),
    ("POST", "/charges"),
    ("POST", "/charges/{id}/refunds"),
]


@pytest.fixture(scope="module")
def schema(demo: Running) -> Any:
    import schemathesis

    return schemathesis.openapi.from_url(f"{demo.url}/openapi.json")


def test_the_generator_tries_every_operation(schema: Any) -> None:
    documented = {(one.ok().method.upper(), one.ok().path) for one in schema.get_all_operations()}
    assert documented == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(o) for o in OPERATIONS])
def test_responses_are_as_documented(schema: Any, demo: Running, method: str, path: str) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import negative_data_rejection

    operation = schema[path][method]
    right = operation.as_strategy(GenerationMode.POSITIVE)
    wrong = operation.as_strategy(GenerationMode.NEGATIVE)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=right | wrong)
    def conforms(case: Any) -> None:
        # Every case gets a token and a fresh key, and parameters that no route knows are
        # ignored: only what is wrong in a body must be refused.
        wrong_parts = [at for at, part in case.meta.components.items() if part.mode.is_negative]
        lenient = [] if [at.value for at in wrong_parts] == ["body"] else [negative_data_rejection]
        headers = {"Authorization": f"Bearer {demo.tokens[1]}"}
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        if isinstance(case.body, dict) and case.body.get("card") in TROUBLE:
            case.body["card"] = Card.OK.value  # other methods are refused on purpose
        case.call_and_validate(headers=headers, excluded_checks=lenient)

    conforms()
