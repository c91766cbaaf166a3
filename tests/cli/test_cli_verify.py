"""The command `oncekey verify`: what it asks, sends, prints and writes, and its exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import Command
from tests.verify.json_server import Received, Reply, serving

from oncekey.cli import verify_run
from oncekey.cli.output import ExitCode
from oncekey.verify import effect_counters, probes
from oncekey.verify.probe import Probe, ProbeRun
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

TOKEN = "tok_c0ffee_secret"
FAR = "http://192.0.2.1/charges"  # an address that nobody has


class SmallApi:
    """An API that remembers keys and answers with what it has charged at /ledger."""

    def __init__(self) -> None:
        self.charges: list[dict[str, str]] = []
        self.answers: dict[str, Reply] = {}
        self.sent: list[Received] = []
        self.lock = threading.Lock()

    def answer(self, received: Received) -> Reply:
        with self.lock:
            self.sent.append(received)
            if received.headers.get("authorization") != f"Bearer {TOKEN}":
                return Reply(401, {"title": f"not {received.headers.get('authorization')}"})
            if received.method == "GET":
                return Reply(200, {"charges": self.charges})
            order = json.loads(received.body)["order"]
            key = received.headers["idempotency-key"]
            if key not in self.answers:
                self.charges.append({"order": order})
                self.answers[key] = Reply(201, {"id": f"ch_{len(self.charges)}"})
            return self.answers[key]

    @property
    def posted(self) -> list[Received]:
        return [received for received in self.sent if received.method == "POST"]


class Replay:
    guarantee: ClassVar = Guarantee.LOST_RESPONSE
    sends: ClassVar = "a request, and its retry"

    async def run(self, run: ProbeRun) -> Verdict:
        made = await run.operation()
        await run.send(made.request(), "first")
        await run.retry(made.request())
        assert await run.effects(made) == 1
        return holds(self.guarantee, "the retry was replayed", n=2, window="one retry")


class Unscoped:
    guarantee: ClassVar = Guarantee.OTHER_CALLER
    sends: ClassVar = "the same key by somebody else"

    async def run(self, run: ProbeRun) -> Verdict:
        made = await run.operation()
        first = await run.send(made.request(), "first")
        found = Violation(Fault.UNSCOPED, "the other caller got ch_2", (first,))
        return violated(self.guarantee, [found], n=1)


class Unseen:
    guarantee: ClassVar = Guarantee.NO_CONTENT
    sends: ClassVar = "a request that is answered with 204"

    async def run(self, run: ProbeRun) -> Verdict:
        return not_observable(self.guarantee, "nothing is answered with 204", "Give --variant.")


@pytest.fixture
def api() -> SmallApi:
    return SmallApi()


@pytest.fixture
def url(api: SmallApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    with serving(api.answer) as address:
        yield f"{address}/charges"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, Replay(), Unseen())


def choose(monkeypatch: pytest.MonkeyPatch, *chosen: Probe) -> None:
    monkeypatch.setattr(probes, "PROBES", chosen)


def options(url: str) -> tuple[str, ...]:
    body = '{"order": "{{unique}}"}'
    counted = ("--count-url", "/ledger", "--count-path", "$.charges", "--count-match", "{{unique}}")
    return (url, "-d", body, "-H", "Authorization: Bearer $SHOP_TOKEN", *counted)


def test_what_holds_is_printed_with_what_it_stands_on(here: Command, url: str, use: None) -> None:
    ran = here("verify", *options(url))
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    lines = ran.out.splitlines()
    assert lines[0].split() == ["holds", "lost-response", "the", "retry", "was", "replayed"]
    assert "    n = 2; one retry" in lines
    assert "    nothing is answered with 204" in lines
    assert lines[-1].startswith("0 violated, 1 hold, 1 not observable; 3 requests in ")


def test_a_violation_is_printed_with_its_curl_line_and_exits_with_4(
    here: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, Replay(), Unscoped())
    ran = here("verify", *options(url))
    assert ran.code == ExitCode.UNHEALTHY
    after = ran.out.partition("keys are shared by all callers (unscoped)")[2]
    assert "what:  the other caller got ch_2" in after
    assert "mend:  Store and look up keys by the authenticated account" in after
    assert "      curl -i -X POST -H 'Content-Type: application/json'" in after
    assert '      -> 201  {"id": "ch_3"}' in after
    assert TOKEN not in ran.out


def test_strict_exits_with_4_for_what_is_not_observable(here: Command, url: str, use: None) -> None:
    assert here("verify", *options(url), "--strict").code == ExitCode.UNHEALTHY
    skipped = here("verify", *options(url), "--strict", "--skip", "no-content")
    assert skipped.code == ExitCode.OK
    only = here("verify", *options(url), "--json", "--only", "no-content").data
    assert [one["guarantee"] for one in only["guarantees"]] == ["no-content"]


def test_reports_are_written_and_json_is_one_document(
    here: Command, url: str, use: None, tmp_path: Path
) -> None:
    page, junit = tmp_path / "report.html", tmp_path / "verify.xml"
    ran = here("verify", *options(url), "--html", str(page), "--junit", str(junit), "--json")
    assert ran.data["counts"] == {"holds": 1, "violated": 0, "not observable": 1}
    assert ran.data["effects"].endswith("/ledger, $.charges, elements with {{unique}}")
    assert "<h1>1 guarantee is seen to hold, 1 not observable</h1>" in page.read_text()
    assert len(list(ElementTree.parse(junit).iter("testcase"))) == 2
    assert TOKEN not in ran.out + page.read_text() + junit.read_text()


def test_a_dry_run_shows_what_would_be_sent_and_sends_nothing(
    here: Command, url: str, use: None, api: SmallApi
) -> None:
    ran = here("verify", *options(url), "--dry-run", "--profile", "stripe")
    assert (ran.code, api.sent) == (ExitCode.OK, [])
    assert "  curl -i -X POST -H 'Content-Type: application/json'" in ran.out
    assert "<Authorization of the caller>" in ran.out
    assert "at most   2000 requests, 100 at once, 120 s" in ran.out
    assert "  lost-response          a request, and its retry" in ran.out
    assert "not observable: there is no request that is answered with 204" in ran.out
    assert "give one: --variant no-content=BODY, or [variants.no-content]" in ran.out
    data = here("verify", *options(url), "--dry-run", "--json").data
    assert (data["dry_run"], data["asks_first"]) == (True, False)
    assert [one["guarantee"] for one in data["guarantees"]] == ["lost-response", "no-content"]


def test_everything_may_come_from_a_file_and_options_win(
    here: Command, url: str, use: None, api: SmallApi, tmp_path: Path
) -> None:
    file = tmp_path / "charges.toml"
    file.write_text(
        f"""
        url = "{url}"
        only = ["lost-response"]
        [request]
        json = {{ order = "{{{{unique}}}}" }}
        [callers]
        main = {{ Authorization = "Bearer $SHOP_TOKEN" }}
        [effects]
        url = "/ledger"
        path = "$.charges"
        [limits]
        requests = 2
        """
    )
    ran = here("verify", "--config", str(file), "--json")
    assert ran.data["guarantees"][0]["summary"].startswith("it was not finished: the limit")
    assert len(api.posted) == 2
    ran = here("verify", "--config", str(file), "--max-requests", "3", "--json")
    assert ran.data["counts"]["holds"] == 1


# --- what is not begun ----------------------------------------------------------------------------


def test_another_host_is_asked_about_first(
    here: Command, use: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = here("verify", FAR)
    assert ran.code == ExitCode.USAGE
    assert "up to 2000 requests, many of them with real effects" in ran.err
    assert "--yes agrees to that, --dry-run shows them" in ran.err
    asked = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(verify_run, "can_ask", lambda: True)
    monkeypatch.setattr(verify_run, "ask", refuse)
    ran = here("verify", FAR)
    assert (ran.code, ran.err) == (ExitCode.USAGE, "oncekey: nothing was sent\n")
    assert "would be sent to http://192.0.2.1. Go on?" in asked[0]
    assert here("verify", FAR, "--dry-run").code == ExitCode.OK


def test_a_verification_that_cannot_begin_replaces_the_junit_file(
    here: Command, url: str, use: None, tmp_path: Path
) -> None:
    junit = tmp_path / "verify.xml"
    junit.write_text("of an earlier run")
    wrong = ("--caller", "Authorization: Bearer tok_wrong_secret")
    assert here("verify", url, "-d", "{}", *wrong, "--junit", str(junit)).code == ExitCode.USAGE
    (suite,) = ElementTree.parse(junit).iter("testsuite")
    (error,) = suite.iter("error")
    assert suite.get("errors") == "1"
    assert "the request is not a valid one" in str(error.get("message"))


def test_a_request_that_is_refused_stops_it(here: Command, url: str, use: None) -> None:
    ran = here("verify", url, "-d", "{}", "--caller", "Authorization: Bearer tok_wrong_secret")
    assert ran.code == ExitCode.USAGE
    assert "Not begun: the request is not a valid one, or the API is not ready: 401" in ran.out
    assert '-> 401  {"title": "not <Authorization of the caller>"}' in ran.out
    assert "tok_wrong" not in ran.out


def test_an_api_that_is_not_there_stops_it(here: Command, use: None) -> None:
    ran = here("verify", "http://127.0.0.1:1/charges", "--json")
    assert ran.code == ExitCode.FAILED
    assert "cannot connect to http://127.0.0.1:1" in ran.data["not_begun"]


def test_a_counter_that_misses_the_first_effect_stops_it(
    here: Command, url: str, use: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect_counters, "COUNT_PATIENCE_SECONDS", 0.0)
    ran = here("verify", *options(url)[:-1], "nobody has this")
    assert ran.code == ExitCode.USAGE
    assert "one request had its effect, and the counter saw 0: GET " in ran.out


def test_a_counter_of_all_operations_is_compared_with_what_it_said_before(
    here: Command, url: str, use: None, api: SmallApi
) -> None:
    api.charges += [{"order": "an older one"}] * 5
    assert here("verify", *options(url)[:-1], "order").code == ExitCode.OK


def test_without_a_counter_ids_are_compared_where_there_are_any(
    here: Command, url: str, use: None
) -> None:
    ran = here("verify", *options(url)[:5], "--json")
    assert ran.data["effects"] == "different ids in the responses ($.id)"
    ran = here("verify", *options(url)[:5], "--count-id", "$.charge")
    assert ran.code == ExitCode.USAGE
    assert "the response has no id at $.charge" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no URL: give the one that the request is sent to"),
        (("127.0.0.1:80",), "is not a URL such as http://127.0.0.1:8000/charges"),
        ((FAR, "-H", "Bearer x"), "--header: a header is written as 'Name: value'"),
        ((FAR, "--variant", "fast={}"), "--variant fast: expected is NAME=BODY with other-body"),
        ((FAR, "-d", "@none.json"), "--data @none.json: No such file or directory"),
        ((FAR, "--count-path", "$.id"), "need --count-url or --count-sql"),
        ((FAR, "--caller", "X-Api-Key: $NOT_THERE"), "variable NOT_THERE is not set"),
        ((FAR, "--only", "no-content", "--skip", "no-content"), "nothing is left to verify"),
        ((FAR, "--only", "all"), "'all' is not one of 'concurrent-duplicates'"),
        ((FAR, "--max-requests", "0"), "0 is not in the range"),
        ((FAR, "--yes", "--html", "none/report.html"), "there is no folder none"),
        (("--config", "none.toml"), "none.toml: No such file or directory"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(
    here: Command, use: None, arguments: tuple[str, ...], message: str
) -> None:
    ran = here("verify", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_limit_of_a_file_has_a_range(here: Command, use: None, tmp_path: Path) -> None:
    file = tmp_path / "charges.toml"
    file.write_text(f'url = "{FAR}"\n[limits]\nconcurrency = 1000\n')
    ran = here("verify", "--config", str(file))
    assert ran.code == ExitCode.USAGE
    assert "[limits] concurrency: 1000 is not from 2 to 500" in ran.err
    file.write_text(f'url = "{FAR}"\nonly = ["all"]\n')
    assert (
        "only, skip: 'all' is none of bad-credentials, "
        in here("verify", "--config", str(file)).err
    )


def test_variants_of_options_are_bodies_or_paths(here: Command, url: str, use: None) -> None:
    ran = here(
        "verify",
        *(*options(url), "--dry-run", "--json"),
        *("--variant", 'no-content=/pings {"a": 1}', "--variant", "other-path=/refunds"),
        *("--variant", "slow={}"),
    )
    assert ran.data["variants"] == ["no-content", "other-path", "slow"]
    assert [one["missing"] for one in ran.data["guarantees"]] == ["", ""]
