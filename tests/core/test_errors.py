"""The tree of errors: what users catch, read, log, and send between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from oncekey.core import errors
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    KeyChanged,
    LeaseLost,
    Mismatch,
    MissingKey,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
    WaitTimeout,
)

TREE: dict[type[OncekeyError], tuple[type[Exception], int]] = {
    OncekeyError: (Exception, 500),
    InvalidKey: (OncekeyError, 400),
    MissingKey: (InvalidKey, 400),
    Mismatch: (OncekeyError, 422),
    InFlight: (OncekeyError, 409),
    WaitTimeout: (InFlight, 409),
    OutcomeUnknown: (OncekeyError, 409),
    OperationFailed: (OncekeyError, 500),
    LeaseLost: (OncekeyError, 500),
    NotReplayable: (OncekeyError, 500),
    KeyChanged: (OncekeyError, 409),
    StoreUnavailable: (OncekeyError, 503),
    ConfigurationError: (OncekeyError, 500),
}
EXTRAS: dict[type[OncekeyError], dict[str, Any]] = {
    InFlight: {"retry_after": 2.5},
    WaitTimeout: {"retry_after": 0.25},
    OperationFailed: {"error_type": "ValueError", "error_message": "no"},
    NotReplayable: {"value": {"id": 1}},
    StoreUnavailable: {"ambiguous": False, "value": [1, 2]},
}
WHERE = {"operation": "charge", "tag": "0123456789ab"}


def full(kind: type[OncekeyError]) -> OncekeyError:
    return kind("it went wrong", **WHERE, **EXTRAS.get(kind, {}))


def test_the_tree_is_complete() -> None:
    defined = {
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert defined == {*TREE, Terminal, NotStarted}


@pytest.mark.parametrize("kind", TREE)
def test_each_error_has_its_parent_and_its_status(kind: type[OncekeyError]) -> None:
    parent, status = TREE[kind]
    assert kind.__bases__ == (parent,)
    assert kind.status == status
    assert kind("x").status == status


@pytest.mark.parametrize("kind", TREE)
def test_the_docstring_draws_the_tree(kind: type[OncekeyError]) -> None:
    drawn = errors.__doc__ or ""
    line = next(line for line in drawn.splitlines() if kind.__name__ in line.split())
    assert kind is OncekeyError or str(kind.status) in line.split()


@pytest.mark.parametrize("kind", [Terminal, NotStarted])
def test_errors_that_a_body_raises_are_outside_the_tree(kind: type[Exception]) -> None:
    assert kind.__bases__ == (Exception,)
    assert str(kind("declined")) == "declined"


@pytest.mark.parametrize("kind", TREE)
def test_a_message_says_which_operation_and_key(kind: type[OncekeyError]) -> None:
    assert str(full(kind)) == "charge [0123456789ab]: it went wrong"
    assert str(kind("it went wrong")) == "it went wrong"
    assert str(kind()) == ""


def test_the_attributes_of_errors_have_defaults() -> None:
    assert InFlight("x").retry_after == 1.0
    assert StoreUnavailable("x").ambiguous is True
    assert StoreUnavailable("x").value is None
    assert NotReplayable("x").value is None
    assert (OperationFailed("x").error_type, OperationFailed("x").error_message) == ("", "")


@pytest.mark.parametrize("kind", TREE)
@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_errors_survive_copying_and_pickling_whole(kind: type[OncekeyError], again: Any) -> None:
    """Errors cross process pools and task queues."""
    error = full(kind)
    other = again(error)
    assert type(other) is kind
    assert other is not error
    assert (str(other), other.args) == (str(error), error.args)
    assert vars(other) == vars(error)
    for name, value in {**WHERE, **EXTRAS.get(kind, {})}.items():
        assert getattr(other, name) == value


@pytest.mark.parametrize("kind", TREE)
def test_options_are_keyword_only(kind: type[OncekeyError]) -> None:
    with pytest.raises(TypeError):
        kind("message", "charge")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [*TREE, Terminal, NotStarted])
def test_every_error_says_what_it_means(kind: type[Exception]) -> None:
    assert "__doc__" in vars(kind)
    assert len(kind.__doc__ or "") > 20
