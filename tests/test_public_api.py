"""The public names: what is promised is there, and nothing else is."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib.resources import files

import pytest

import oncekey
from oncekey import queues
from oncekey.core import errors

# The public names. A change here is a change of the contract with users.
PROMISED = {
    "AsyncOnce",
    "ConfigurationError",
    "InFlight",
    "InvalidKey",
    "LeaseLost",
    "Mismatch",
    "MissingKey",
    "NotReplayable",
    "NotStarted",
    "Once",
    "OncekeyError",
    "OperationFailed",
    "OutcomeUnknown",
    "Policy",
    "StoreUnavailable",
    "Terminal",
    "WaitTimeout",
    "child_key",
}


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert oncekey.__all__ == sorted(set(oncekey.__all__))


def test_all_is_complete() -> None:
    """A name has one home: the one that checkers of types see is the one it is imported from."""
    seen_by_checkers = {
        name.name: f"{node.module}"
        for node in ast.walk(ast.parse(inspect.getsource(oncekey)))
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("oncekey.")
        for name in node.names
    }
    imported_from = {name: f"oncekey.{module}" for name, module in oncekey._MODULES.items()}
    assert imported_from == seen_by_checkers
    assert set(imported_from) == set(oncekey.__all__)
    assert set(dir(oncekey)) >= set(oncekey.__all__)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'oncekey' has no attribute 'Twice'"):
        _ = oncekey.Twice  # type: ignore[attr-defined]


def test_what_the_design_promises_is_there() -> None:
    assert set(oncekey.__all__) >= PROMISED


def test_every_error_can_be_imported_by_name() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert raised <= set(oncekey.__all__)


def test_star_import_gives_exactly_the_public_names() -> None:
    given: dict[str, object] = {}
    exec("from oncekey import *", given)
    assert given.keys() - {"__builtins__"} == set(oncekey.__all__)


@pytest.mark.parametrize("name", oncekey.__all__)
def test_every_public_name_is_documented_and_ours(name: str) -> None:
    value = getattr(oncekey, name)
    doc = inspect.getdoc(value) or ""
    assert value.__module__.startswith("oncekey.")
    assert len(doc) > 20
    assert not doc.startswith(f"{name}("), "a dataclass's signature is no documentation"


@pytest.mark.parametrize("name", ["AsyncAttempt", "AsyncOnce", "Attempt", "Once"])
def test_every_public_method_is_documented(name: str) -> None:
    methods = inspect.getmembers(getattr(oncekey, name), inspect.isfunction)
    bare = [method for method, fn in methods if method[0] != "_" and not inspect.getdoc(fn)]
    assert bare == []


@pytest.mark.parametrize(
    ("blocking", "later"), [("Once", "AsyncOnce"), ("Attempt", "AsyncAttempt")]
)
def test_both_colours_have_the_same_names_and_options(blocking: str, later: str) -> None:
    def surface(name: str) -> dict[str, list[str]]:
        members = inspect.getmembers(getattr(oncekey, name))
        return {
            member: list(inspect.signature(value).parameters) if callable(value) else []
            for member, value in members
            if not member.startswith("_")
        }

    one, other = surface(blocking), surface(later)
    other["close"] = [p for p in other.get("close", []) if p != "drain"]  # only tasks are drained
    other.pop("drain", None)
    one.setdefault("close", [])
    assert one == other


def test_importing_oncekey_imports_no_driver_and_no_command_line() -> None:
    """A web worker that uses another store must not pay for these."""
    script = (
        "import sys\nfrom oncekey import *\n"
        "heavy = {'sqlite3', '_sqlite3', 'click', 'rich', 'pydantic', 'pytest', 'hypothesis'}\n"
        "ours = {'oncekey.stores', 'oncekey.cli', 'oncekey.testing'}\n"
        "print(*sorted((heavy | ours) & sys.modules.keys()), end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_types_are_shipped() -> None:
    assert files("oncekey").joinpath("py.typed").is_file()


def test_the_version_is_a_version() -> None:
    numbers = oncekey.__version__.split(".")
    assert len(numbers) == 3
    assert all(number.isdigit() for number in numbers)


# --- queues ---------------------------------------------------------------------------------------

PROMISED_QUEUES = {
    "AsyncBroker",
    "AsyncConsumer",
    "AsyncMemoryBroker",
    "Broker",
    "BrokerFacts",
    "BrokerUnavailable",
    "Consumer",
    "DeadLetter",
    "Disposition",
    "Kind",
    "MemoryBroker",
    "Message",
    "TooManyTries",
    "consume",
}


def test_the_names_that_all_brokers_share_are_those_of_the_queues_package() -> None:
    assert set(queues.__all__) == PROMISED_QUEUES
    assert list(queues.__all__) == sorted(queues.__all__)


@pytest.mark.parametrize("name", queues.__all__)
def test_every_public_name_of_queues_is_documented(name: str) -> None:
    assert len(inspect.getdoc(getattr(queues, name)) or "") > 20


def test_both_consumers_have_the_same_names_and_options() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind)
        return {
            name: list(inspect.signature(value).parameters) if callable(value) else []
            for name, value in members
            if not name.startswith("_")
        }

    assert public(queues.Consumer) == public(queues.AsyncConsumer)


def test_importing_queues_imports_no_client_of_a_broker() -> None:
    script = (
        "import sys, oncekey.queues\n"
        "heavy = {'boto3', 'botocore', 'confluent_kafka', 'aiokafka', 'pika', 'aio_pika', 'redis',"
        " 'celery', 'dramatiq', 'taskiq', 'faststream', 'oncekey.stores.postgres', 'sqlite3'}\n"
        "print(*sorted(heavy & sys.modules.keys()), end='')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
