"""The TOML file of a verification: all that it can say, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.verify.effect_counters import SqlCounter, UrlCounter
from oncekey.verify.target import Operation, Variant, new_values
from oncekey.verify.target_file import FILE_MAX_BYTES, FileSettings, read_target_file

WHOLE = """
url = "http://127.0.0.1:8000/charges?currency=eur"
profile = "oncekey"
key_header = "X-Key"
quoted_key = true
keep = "10s"
slow = "1500ms"
only = ["lost-response", "expiry"]
skip = ["expiry"]

[request]
method = "put"
headers = { Accept = "application/json", "X-Trace" = ["a", "b"] }
json = { order = "{{unique}}", cents = 500 }

[callers]
main = { Authorization = "Bearer $TOKEN" }
other = { Authorization = "Bearer ${OTHER_TOKEN}" }
bad = { Authorization = "Bearer x" }

[variants.slow]
body = '{"order": "{{unique}}", "slow": true}'

[variants.other-path]
path = "/refunds"
method = "post"

[variants.large]
body_file = "large.json"

[effects]
sql = "SELECT count(*) FROM charges WHERE ref = :unique"
database = "postgresql://shop:$DB_PASSWORD@db/shop"

[limits]
requests = 500
concurrency = 20
timeout = "5s"
patience = "10s"
total = "1m"
"""
ENVIRONMENT = {"TOKEN": "t-1", "OTHER_TOKEN": "t-2", "DB_PASSWORD": "pw"}


def read(tmp_path: Path, text: str) -> FileSettings:
    path = tmp_path / "charges.toml"
    path.write_text(text)
    return read_target_file(path)


def test_a_file_tells_everything_about_an_api(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text('{"rows": 100000}')
    told = read(tmp_path, WHOLE)
    assert (told.profile, told.only, told.skip) == (
        "oncekey",
        ("lost-response", "expiry"),
        ("expiry",),
    )
    assert told.limits == {
        "requests": 500,
        "concurrency": 20,
        "timeout": 5.0,
        "patience": 10.0,
        "total_seconds": 60.0,
    }
    target = told.target.target(ENVIRONMENT)
    assert (target.keep_seconds, target.slow_seconds) == (10.0, 1.5)
    assert target.other_caller is not None
    assert target.other_caller.headers == (("Authorization", "Bearer t-2"),)
    assert isinstance(target.effects, SqlCounter)
    assert target.effects.database == "postgresql://shop:pw@db/shop"
    assert target.effects.describe().endswith("on postgresql://shop:***@db/shop")


def test_a_files_requests_are_sent_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text('{"rows": 100000}')
    target = read(tmp_path, WHOLE).target.target(ENVIRONMENT)
    made = Operation(target, Variant.MAIN, "k-1", {**new_values("k-1"), "unique": "u-1"})
    request = made.request()
    assert (request.method, request.path) == ("PUT", "/charges?currency=eur")
    assert request.body == b'{"order": "u-1", "cents": 500}'
    assert request.headers == (
        ("Accept", b"application/json"),
        ("X-Trace", b"a"),
        ("X-Trace", b"b"),
        ("Content-Type", b"application/json"),
        ("Authorization", b"Bearer t-1"),
        ("X-Key", b'"k-1"'),
    )
    assert made.request(variant=Variant.SLOW).body == b'{"order": "u-1", "slow": true}'
    assert made.request(variant=Variant.LARGE).body == b'{"rows": 100000}'
    other = made.request(variant=Variant.OTHER_PATH)
    assert (other.method, other.path, other.body) == ("POST", "/refunds", request.body)


def test_a_file_may_say_nothing_but_a_url(tmp_path: Path) -> None:
    target = read(tmp_path, 'url = "http://localhost/charges"').target.target({})
    assert str(target.origin) == "http://localhost"
    assert target.origin.is_loopback
    assert target.bad_caller is None
    assert target.variants.keys() == {Variant.MAIN}


def test_a_counters_url_may_be_a_path_of_the_same_api(tmp_path: Path) -> None:
    text = """
    url = "https://api.example.org/v1/charges"
    callers.main = { X-Api-Key = "$TOKEN" }
    effects = { url = "/ledger?ref={{unique}}", path = "$.rows" }
    """
    counter = read(tmp_path, text).target.target(ENVIRONMENT).effects
    assert isinstance(counter, UrlCounter)
    assert counter.describe() == "GET https://api.example.org/ledger?ref={{unique}}, $.rows"
    assert counter.caller.headers == (("X-Api-Key", "t-1"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url = ", "not TOML: "),
        ("uri = 1", "uri: unknown; here are allowed: url, profile, key_header, quoted_key, keep"),
        ("url = 1", "url: a text is expected, not 1"),
        ('profile = "aws"', "profile: one of ietf, stripe, oncekey is expected, not 'aws'"),
        ("quoted_key = 1", "quoted_key: true or false is expected, not 1"),
        ("keep = 10", "keep: a text is expected, not 10"),
        ('keep = "ten"', 'keep: a duration such as "2s" or "500ms" is expected, not \'ten\''),
        ('only = "expiry"', "only: a list of texts is expected, not 'expiry'"),
        ("request = 1", "request: a table [request] is expected, not 1"),
        ('[request]\npath = "/x"', "[request] path: unknown; here are allowed: method, headers"),
        (
            '[request]\nbody = "a"\njson = 1',
            "[request] json: there is body already; one of body, json and body_file",
        ),
        ("[request]\njson = 2026-01-01", "[request] json: JSON has no such value"),
        ("[request]\nheaders = 1", '[request] headers: a table is expected, such as { Accept = "'),
        ("[request.headers]\nA = 1", "[request] headers.A: a text is expected, not 1"),
        ('[request]\nbody_file = "none"', "[request] body_file: none: [Errno 2] No such file"),
        (
            '[callers.admin]\nA = "b"',
            "[callers] admin: unknown; here are allowed: main, other, bad",
        ),
        ('[variants.fast]\nbody = ""', "[variants] fast: unknown; here are allowed: other-body, "),
        ('[variants.slow]\nurl = "x"', "[variants.slow] url: unknown; here are allowed: method, "),
        ('[effects]\nsql = "s"\nurl = "u"', "[effects] sql: there is url already; one of url, "),
        ('[effects]\npath = "$.id"', "[effects] path: it belongs to url, which is not there"),
        ('[effects]\ncommand = "wc"', "[effects] command: a list of texts is expected, not 'wc'"),
        ("[limits]\nrequests = 1.5", "[limits] requests: a whole number is expected, not 1.5"),
        ("[limits]\nseconds = 1", "[limits] seconds: unknown; here are allowed: requests, "),
    ],
)
def test_a_wrong_file_is_told_by_table_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, text)
    assert f"charges.toml: {message}" in str(raised.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: No such file"):
        read_target_file(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="longer than"):
        read(tmp_path, "#" * (FILE_MAX_BYTES + 1))
