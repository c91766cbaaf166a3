"""The guard decorator: wrong options and functions raise at decoration."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.guard import Guarded, guarded
from oncekey.engine.once import Once


def plain(order: str, cents: int = 5) -> str:
    return f"{order}:{cents}"


async def later(order: str, cents: int = 5) -> str:
    return f"{order}:{cents}"


def key_of(order: str, cents: int = 5) -> str:
    return order


def look(fn: Any, *, is_async: bool = False, **changes: Any) -> Guarded:
    options = {"key": key_of, "scope": "", "request": None, **changes}
    codec: dict[str, Any] = {"codec": None, "codec_of": lambda *given: None}
    return guarded(fn, "charge", options={}, is_async=is_async, **codec, **options)


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (plain, {"key": "order"}, r"guard\('charge'\): key must be a function"),
        (plain, {"key": None}, "key must be a function"),
        (plain, {"scope": None}, "scope must be text or a function"),
        (plain, {"scope": 5}, "scope must be text or a function"),
        (plain, {"request": {"cents": 5}}, "request must be a function"),
        (later, {}, "later is async; guard it with AsyncOnce"),
        (plain, {"is_async": True}, "plain is plain; guard it with Once"),
    ],
)
def test_wrong_pickers_and_functions_raise_at_decoration(
    fn: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        look(fn, **options)


def test_key_scope_and_request_are_picked_from_the_call() -> None:
    how = look(
        plain,
        scope=lambda order, cents=5: f"scope of {order}",
        request=lambda order, cents=5: {"cents": cents},
    )
    assert how.pick(("o1",), {"cents": 7}) == ("o1", "scope of o1", {"cents": 7})
    assert how.pick(("o1",), {}) == ("o1", "scope of o1", {"cents": 5})


def test_a_scope_may_be_text_and_a_request_may_be_missing() -> None:
    assert look(plain, scope="acct").pick(("o1",), {}) == ("o1", "acct", None)


def _keyword(order: str, *, attempt: Any) -> None: ...
def _optional(order: str, attempt: Any = None) -> None: ...
def _positional(attempt: Any, /) -> None: ...
def _others(order: str, **rest: Any) -> None: ...


@pytest.mark.parametrize(
    ("fn", "wants"),
    [(_keyword, True), (_optional, True), (_positional, False), (_others, False), (plain, False)],
)
def test_a_parameter_named_attempt_is_given_the_attempt(fn: Any, wants: bool) -> None:
    assert look(fn).wants_attempt is wants


# --- on the engines -----------------------------------------------------------------------------


def test_a_wrong_policy_option_raises_before_any_function_is_decorated() -> None:
    with Once("memory://") as once:
        with pytest.raises(ConfigurationError, match="unknown option ttl"):
            once.guard("charge", key=key_of, ttl="5s")  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError, match="requires at most once but would run at best"):
            once.guard("charge", key=key_of, require="at_most_once")


def test_an_async_function_is_refused_by_once_and_a_plain_one_by_async_once() -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match="AsyncOnce"):
        once.guard("charge", key=key_of)(later)
    wrong: Any = plain
    with pytest.raises(ConfigurationError, match="guard it with Once"):
        AsyncOnce("memory://").guard("charge", key=key_of)(wrong)


def test_a_guarded_function_keeps_its_name_and_runs_once() -> None:
    calls: list[tuple[str, int]] = []
    with Once("memory://") as once:

        @once.guard("charge", key=key_of, request=lambda order, cents=5: cents)
        def charge(order: str, cents: int = 5) -> list[object]:
            """Charge an order."""
            calls.append((order, cents))
            return [order, cents]

        assert charge("o1") == charge("o1") == ["o1", 5]
        assert charge("o2", cents=6) == ["o2", 6]
    assert calls == [("o1", 5), ("o2", 6)]
    assert (charge.__name__, charge.__doc__) == ("charge", "Charge an order.")


def test_the_parameter_attempt_may_be_at_any_position() -> None:
    """It is best first, for type checkers; callers leave it out."""
    with Once("memory://") as once:

        @once.guard("first", key=lambda order, cents: order)
        def first(attempt: Attempt, order: str, cents: int) -> list[object]:
            return [attempt.key, order, cents]

        @once.guard("between", key=lambda order, cents=5: order)
        def between(order: str, attempt: Attempt, cents: int = 5) -> list[object]:
            return [attempt.key, order, cents]

        class Shop:
            @once.guard("method", key=lambda shop, order: order)
            def sell(self, attempt: Attempt, order: str) -> list[object]:
                return [attempt.key, order]

        assert first("o1", 6) == first("o1", cents=6) == ["o1", "o1", 6]
        assert first(order="o2", cents=7) == ["o2", "o2", 7]
        assert between("o1", 6) == between("o1") == ["o1", "o1", 6]
        assert between("o2") == ["o2", "o2", 5]
        assert Shop().sell("o1") == ["o1", "o1"]


def test_a_guarded_function_with_an_attempt_parameter_gets_its_attempt() -> None:
    with Once("memory://") as once:

        @once.guard("charge", key=key_of)
        def charge(order: str, *, attempt: Any = None) -> list[object]:
            return [attempt.key, attempt.number, attempt.child_key("pay")]

        assert charge("o1")[:2] == ["o1", 1]  # type: ignore[no-untyped-call]


def test_a_guard_with_a_bad_operation_or_codec_is_refused_when_it_is_made() -> None:
    with Once("memory://") as once:
        with pytest.raises(InvalidKey, match="operation"):
            once.guard("", key=str)
        with pytest.raises(ConfigurationError, match="no pydantic model"):
            once.guard("op", key=str, codec=5)
