"""A target from what a user tells: URLs, callers and their secrets, content types, refusals."""

from __future__ import annotations

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.verify.effect_counters import ResponseIdCounter, UrlCounter
from oncekey.verify.recorded_exchange import curl_line
from oncekey.verify.target import Operation, Target, Variant, new_values
from oncekey.verify.target_settings import (
    EffectSettings,
    HeaderTexts,
    RequestSettings,
    TargetSettings,
    expand,
    split_url,
)

URL = "http://127.0.0.1:8000/charges"


def main_template_headers(target: Target) -> HeaderTexts:
    return target.variants[Variant.MAIN].headers


def curl_of(target: Target) -> str:
    made = Operation(target, Variant.MAIN, "k-1", new_values("k-1"))
    return curl_line(made.request(), str(target.origin))


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "/"),
        ("https://api.example.org:443/a/b?c=d", "https://api.example.org", "/a/b?c=d"),
        ("http://[::1]:8000/x", "http://[::1]:8000", "/x"),
        ("http://localhost/caf\u00e9/{{unique}}?q=a b", None, "/caf%C3%A9/{{unique}}?q=a%20b"),
    ],
)
def test_a_url_is_an_origin_and_a_path(url: str, origin: str | None, path: str) -> None:
    found, rest = split_url(url)
    assert str(found) == (origin or "http://localhost")
    assert rest == path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/", "is not a URL such as"),
        ("127.0.0.1:8000/charges", "is not a URL such as"),
        ("http://user:pw@example.org/", "give them as a header of the caller"),
        ("http://example.org:99999/", "Port out of range"),
        ("http://b\u00fccher.example/", "ASCII form"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        split_url(url)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
    ],
)
def test_only_this_machine_is_sent_to_without_a_question(host: str, expected: bool) -> None:
    assert split_url(f"http://{host}:8000/charges")[0].is_loopback is expected


def test_credentials_among_the_headers_belong_to_the_caller() -> None:
    """So that no report shows them, and another caller does not send them too."""
    told = TargetSettings(
        URL,
        RequestSettings(
            headers=(
                ("authorization", "Bearer t-1"),
                ("X-Shop", "shop-1"),
                ("X-Region", "$REGION"),
                ("Accept", "*/*"),
            )
        ),
        callers={"other": (("X-Shop", "shop-2"),)},
    )
    target = told.target({"REGION": "eu-1"})
    assert main_template_headers(target) == (("Accept", "*/*"),)
    assert target.caller.headers == (
        ("authorization", "Bearer t-1"),
        ("X-Shop", "shop-1"),
        ("X-Region", "eu-1"),
    )
    shown = curl_of(target)
    assert "t-1" not in shown
    assert "eu-1" not in shown
    assert "authorization: <authorization of the caller>" in shown


def test_bad_credentials_are_made_if_none_are_given() -> None:
    told = TargetSettings(URL, callers={"main": (("Authorization", "Bearer t-1"), ("X-Shop", "1"))})
    bad = told.target().bad_caller
    assert bad is not None
    assert bad.headers == (
        ("Authorization", "Bearer oncekey-verify-bad-credentials"),
        ("X-Shop", "1"),
    )
    told.callers["bad"] = (("Authorization", "Bearer expired"),)
    bad = told.target().bad_caller
    assert bad is not None
    assert bad.headers == (("Authorization", "Bearer expired"),)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"order": "{{unique}}", "cents": {{number}}}', "application/json"),
        ("order={{unique}}&cents=5", "application/x-www-form-urlencoded"),
    ],
)
def test_a_content_type_is_found_by_the_body(body: str, expected: str) -> None:
    target = TargetSettings(URL, RequestSettings(body=body)).target()
    assert main_template_headers(target) == (("Content-Type", expected),)


def test_a_given_content_type_stays_and_no_body_needs_none() -> None:
    told = RequestSettings(headers=(("content-type", "text/plain"),), body="{}")
    assert main_template_headers(TargetSettings(URL, told).target()) == told.headers
    assert main_template_headers(TargetSettings(URL).target()) == ()


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ((("Idempotency-Key", "k"),), "each operation gets a key of its own"),
        ((("Content-Length", "3"),), "the verifier writes it by itself"),
        ((("Not a name", "3"),), "cannot be the name of a header"),
        ((("Authorization", "Bearer $NOT_THERE"),), "NOT_THERE is not set"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(headers: HeaderTexts, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TargetSettings(URL, RequestSettings(headers=headers)).target({})


def test_a_dollar_is_written_twice() -> None:
    assert expand("a$$b $X ${X}y $1", {"X": "1"}) == "a$b 1 1y $1"


def test_a_variant_has_no_credentials_of_its_own() -> None:
    told = TargetSettings(URL)
    told.variants[Variant.SLOW] = RequestSettings(headers=(("Cookie", "a=b"),))
    with pytest.raises(ConfigurationError, match="variant slow: Cookie belongs to a caller"):
        told.target()
    told.variants[Variant.SLOW] = RequestSettings(path="no-slash")
    with pytest.raises(ConfigurationError, match="does not begin with /"):
        told.target()


def test_a_token_is_not_sent_to_another_host_that_counts() -> None:
    told = TargetSettings(
        URL,
        callers={"main": (("Authorization", "Bearer t-1"),)},
        effects=EffectSettings(url="http://127.0.0.1:9000/ledger"),
    )
    counter = told.target().effects
    assert isinstance(counter, UrlCounter)
    assert counter.caller.headers == ()
    told.effects.headers = (("Authorization", "Bearer $LEDGER"),)
    counter = told.target({"LEDGER": "t-9"}).effects
    assert isinstance(counter, UrlCounter)
    assert counter.caller.headers == (("Authorization", "Bearer t-9"),)


def test_ids_in_responses_are_compared_if_nothing_else_is_told() -> None:
    assert TargetSettings(URL).target().effects == ResponseIdCounter()
    told = TargetSettings(URL, effects=EffectSettings(ids=("$.charge", "header:X-Id")))
    assert told.target().effects == ResponseIdCounter(("$.charge", "header:X-Id"))


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        (EffectSettings(ids=("$..id",)), "is not a path into JSON"),
        (EffectSettings(url="/l", path="$.a b"), "is not a path into JSON"),
        (EffectSettings(url="/l", sql="SELECT 1"), "in one way"),
        (EffectSettings(sql="SELECT 1"), "a query needs a database"),
    ],
)
def test_effects_that_cannot_be_counted_are_refused(effects: EffectSettings, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TargetSettings(URL, effects=effects).target()
