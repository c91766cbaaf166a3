"""Rules: which requests they match, and which options they take."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import OPTION_NAMES
from oncekey.http.rules import Rule, Rules


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*", "/anything/at/all", True),
        ("/charges", "/charges", True),
        ("/charges", "/charges/", True),
        ("/charges", "/charges/1", False),
        ("/charges", "/chargesx", False),
        ("/charges/{id}/refunds", "/charges/ch_1/refunds", True),
        ("/charges/{id}/refunds", "/charges/ch_1/x/refunds", False),
        ("/charges/{id}/refunds", "/charges//refunds", False),
        ("/api/*", "/api/a/b", True),
        ("/api/*", "/other", False),
        ("/a.b", "/aXb", False),
    ],
)
def test_rule_matches_paths_by_its_pattern(pattern: str, path: str, matches: bool) -> None:
    assert (Rules([Rule(pattern)]).find("POST", path) is not None) is matches


def test_first_rule_that_matches_applies() -> None:
    hook, charge = Rule("/hooks/*", guarded=False), Rule("/charges", methods=["POST", "PUT"])
    rules = Rules([hook, charge])
    assert rules.find("POST", "/hooks/x") is None
    assert rules.find("PUT", "/charges") is charge
    assert rules.find("PATCH", "/charges") is None
    assert rules.find("POST", "/elsewhere") is None
    for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
        assert Rules().find(method, "/charges") is None
    for method in ("POST", "PATCH"):
        assert Rules().find(method, "/x") is not None


def test_spelling_of_a_path_does_not_change_its_rule() -> None:
    hooks, pay = Rule("/hooks/*", guarded=False), Rule("/pay", methods=["*"])
    rest = Rule("*", required=False, methods=["*"])
    rules = Rules([hooks, rest, pay])
    assert (
        rules.find("POST", "/pay") is rest
    )  # the first that matches, if there is one reading only
    rules = Rules([hooks, pay, rest])
    for path in ("/pay", "//pay", "/hooks/../pay", "/x/../pay/", "http://x/pay", "/pay\n"):
        assert rules.find("PUT", path) is pay
    loose, strict = Rule("/a/*", required=False), Rule("/pay")
    assert Rules([loose, strict]).find("POST", "/a/../pay") is strict
    assert rules.find("POST", "/hooks/x") is None
    assert rules.excludes("POST", "/hooks/x")
    assert not rules.excludes("POST", "/pay")
    for method in ("PUT", "DELETE", "charge"):
        assert rules.find(method, "/x") is rest
    for method in ("GET", "head", "OPTIONS", "TRACE"):
        assert rules.find(method, "/x") is None


@pytest.mark.parametrize(
    "options",
    [
        {"methods": ["GET"]},
        {"methods": []},
        {"methods": ["PO ST"]},
        {"methods": "POST"},
        {"path": "charges"},
        {"path": "/a*b"},
        {"ignore": ["a"], "only": ["b"]},
        {"ignore": "a"},
        {"only": []},
        {"max_request": 0},
        {"max_response": 10**12},
        {"store_down": "maybe"},
        {"lease": "soon"},
        {"keep": "0s"},
        {"retry_safe": "yes"},
        {"require": "certain"},
    ],
)
def test_rule_refuses_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rule(**options)


def test_rule_has_every_option_of_a_policy() -> None:
    """All but max_bytes, which follows from max_response."""
    rule_options = {item.name for item in fields(Rule) if item.init}
    assert set(OPTION_NAMES) - {"max_bytes"} <= rule_options
    options: dict[str, Any] = {"keep_unknown": "9d", "store_timeout": "3s", "recover_grace": "2m"}
    assert options.items() <= Rule(**options).options.items()


def test_only_options_that_are_set_go_to_the_engine() -> None:
    assert set(Rule().options) == {"max_bytes"}
    options = Rule(lease="5s", retry_safe=False, wait="1s").options
    assert {name: options[name] for name in ("lease", "retry_safe", "wait")} == {
        "lease": "5s",
        "retry_safe": False,
        "wait": "1s",
    }
