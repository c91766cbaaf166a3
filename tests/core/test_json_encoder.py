"""The encoder that is made once writes what `json.dumps` writes."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from json import encoder as json_encoder
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.codec import Encode, make_encode

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=15,
)


def _other(value: Any) -> Any:
    if isinstance(value, Decimal):
        return ["Decimal", str(value)]
    raise TypeError(f"no {type(value).__name__}")


ENCODERS = {
    (sort, ascii_): make_encode(sort_keys=sort, ensure_ascii=ascii_, default=_other)
    for sort in (True, False)
    for ascii_ in (True, False)
}


def plain(value: Any, *, sort_keys: bool, ensure_ascii: bool) -> str:
    return json.dumps(
        value,
        sort_keys=sort_keys,
        ensure_ascii=ensure_ascii,
        separators=(",", ":"),
        allow_nan=False,
        default=_other,
    )


@pytest.mark.parametrize(("sort_keys", "ensure_ascii"), list(ENCODERS))
@given(value=_values)
def test_the_encoder_writes_what_json_dumps_writes(
    sort_keys: bool, ensure_ascii: bool, value: Any
) -> None:
    expected = plain(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii)
    assert ENCODERS[sort_keys, ensure_ascii](value) == expected


def test_the_c_encoder_is_in_use_here() -> None:
    assert ENCODERS[True, True].__qualname__ == "make_encode.<locals>.encode"


def _no_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_encoder, "c_make_encoder")


def _other_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(markers: object, default: object) -> None:
        raise AssertionError("not reached")

    monkeypatch.setattr(json_encoder, "c_make_encoder", make)


def _other_output(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = vars(json_encoder)["c_make_encoder"]

    def make(markers: object, *rest: object) -> Any:
        """Without a table of markers it means something else."""
        return made(markers, *rest) if markers is not None else lambda value, level: ("else",)

    monkeypatch.setattr(json_encoder, "c_make_encoder", make)


def _none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_encoder, "c_make_encoder", None)


@pytest.fixture(params=[_no_c, _none, _other_signature, _other_output])
def fallback(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Encode:
    """The encoder of a Python without the C encoder."""
    with monkeypatch.context() as patch:
        request.param(patch)
        made = make_encode(sort_keys=True, ensure_ascii=True, default=_other)
    assert made.__qualname__ == "JSONEncoder.encode"
    return made


def test_without_the_c_encoder_the_plain_one_is_used(fallback: Encode) -> None:
    value = {"b": [1, 1.5, Decimal("1")], "a": "ä"}
    assert fallback(value) == ENCODERS[True, True](value)
    assert fallback(value) == '{"a":"\\u00e4","b":[1,1.5,["Decimal","1"]]}'


def test_the_plain_encoder_refuses_nan_too(fallback: Encode) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        fallback([float("nan")])


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_nan_and_infinities_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        ENCODERS[False, False](value)


def test_a_value_that_default_refuses_is_refused() -> None:
    with pytest.raises(TypeError, match="no complex"):
        ENCODERS[True, True]([1j])


def test_a_cycle_ends_in_an_error_and_leaves_the_encoder_usable() -> None:
    around: list[Any] = []
    around.append(around)
    encode = ENCODERS[False, False]
    with pytest.raises((RecursionError, ValueError)):
        encode(around)
    assert encode([[]]) == "[[]]"


def test_a_value_that_occurs_twice_is_no_cycle() -> None:
    part = {"x": 1}
    assert ENCODERS[False, False]([part, part]) == '[{"x":1},{"x":1}]'


def test_one_encoder_is_used_by_many_threads() -> None:
    encode = ENCODERS[True, True]
    wrong: list[str] = []

    def work(number: int) -> None:
        value = {f"k{number}": [number] * 20, "a": {"n": number}}
        expected = plain(value, sort_keys=True, ensure_ascii=True)
        wrong.extend(said for said in (encode(value) for _ in range(200)) if said != expected)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
