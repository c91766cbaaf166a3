"""The reports of a verification: JSON, JUnit and the page, without secrets in any of them."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from tests.demo import browser
from tests.support.servers.processes import ServerMissing
from tests.verify.sample_verification import (
    COOKIE,
    TOKEN,
    broken,
    duplicates,
    exchange,
    holding,
    operation,
    unobservable,
    verification,
)

from oncekey.verify.exchange_chart import ROWS_MAX, draw, largest_round, shares
from oncekey.verify.profile import IETF
from oncekey.verify.recorded_exchange import Exchange, WireRequest, WireResponse
from oncekey.verify.remedies import REMEDIES
from oncekey.verify.report_html import headline, html_report
from oncekey.verify.report_json import json_report
from oncekey.verify.report_junit import junit_report
from oncekey.verify.shown_exchange import response_text, story
from oncekey.verify.verdict import Fault, Guarantee, Violation, violated
from oncekey.verify.verification import ProbeRecord

ORIGIN = "http://127.0.0.1:8000"


def test_no_report_shows_a_token_or_a_cookie() -> None:
    found = verification()
    reports = (html_report(found), junit_report(found), json.dumps(json_report(found)))
    for report in reports:
        assert TOKEN not in report
        assert COOKIE not in report
    assert "&lt;Authorization of the caller&gt;" in reports[0]
    assert "session=...; HttpOnly" in reports[2]


def test_a_short_token_is_not_taken_out_of_other_words() -> None:
    request = WireRequest("POST", "/", (), b"", secrets=((b"Bearer a", "Authorization"),))
    assert response_text(answered(request, b'{"who": "alice", "as": "Bearer a"}')) == (
        '{"who": "alice", "as": "<Authorization>"}'
    )


def test_a_token_is_not_looked_for_in_the_name_that_took_its_place() -> None:
    request = WireRequest("POST", "/", (), b"", secrets=((b"Bearer caller", "the caller"),))
    text = response_text(answered(request, b"Bearer caller, caller"))
    assert text == "<the caller>, <the caller>"


def answered(request: WireRequest, body: bytes) -> Exchange:
    return Exchange(request, WireResponse(200, (), body), "", "", 0.0, 0.1)


def test_every_fault_has_a_remedy() -> None:
    assert [fault for fault in Fault if fault not in REMEDIES] == []


# --- exchanges ------------------------------------------------------------------------------------


def test_equal_requests_at_the_same_time_are_one_entry_with_each_answer_counted() -> None:
    (entry,) = story(duplicates(20, 3), ORIGIN)
    assert (entry.count, entry.together, entry.note) == (20, True, "duplicate")
    assert [(answer.status, answer.count) for answer in entry.answers] == [
        (409, 17),
        (201, 1),
        (201, 1),
        (201, 1),
    ]
    assert entry.curl.startswith("curl -i -X POST -H 'Content-Type: application/json'")


def test_a_retry_after_the_answer_is_an_entry_of_its_own() -> None:
    request = operation().request()
    first = exchange(request, 201, "{}", sent=1.0, answered=2.0, note="first")
    again = exchange(request, 201, "x" * 1000, sent=2.5, answered=3.0, note="retry")
    entries = story([again, first], ORIGIN)
    assert [(entry.note, entry.together, entry.at) for entry in entries] == [
        ("first", False, 0.0),
        ("retry", False, 1.5),
    ]
    assert entries[1].answers[0].body == "x" * 300 + "... (1,000 bytes)"


# --- JSON -----------------------------------------------------------------------------------------


def test_json_has_a_stable_form() -> None:
    data = json.loads(json.dumps(json_report(verification())))
    assert data.keys() == {
        *("format", "url", "method", "profile", "effects", "began_at", "seconds", "requests"),
        *("violated", "counts", "guarantees"),
    }
    assert (data["format"], data["violated"]) == (1, True)
    assert data["counts"] == {"holds": 2, "violated": 2, "not observable": 3}
    race = data["guarantees"][0]
    assert race.keys() == {
        *("guarantee", "title", "status", "summary", "n", "window", "advice", "unseen"),
        *("requests", "seconds", "violations"),
    }
    (violation,) = race["violations"]
    assert violation.keys() == {"fault", "title", "cause", "mend", "what", "exchanges"}
    assert (race["guarantee"], violation["fault"]) == ("concurrent-duplicates", "race")
    assert violation["exchanges"][0]["answers"][0]["count"] == 17


# --- JUnit ----------------------------------------------------------------------------------------


def test_junit_has_a_test_per_guarantee() -> None:
    suites = ElementTree.fromstring(junit_report(verification()))
    (suite,) = suites
    assert suite.attrib | {"time": ""} == {
        "name": "oncekey verify POST http://127.0.0.1:8000/charges",
        "tests": "7",
        "failures": "2",
        "errors": "0",
        "skipped": "3",
        "time": "",
        "timestamp": "2026-03-14T15:09:26+00:00",
    }
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    failure = cases["concurrent-duplicates"].find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "race"
    assert "# -> 409 (17 of 20)" in (failure.text or "")
    assert "mend: Claim the key with one atomic write" in (failure.text or "")
    skipped = cases["other-caller"].find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"].startswith("not observable: there is no second caller")
    assert [child.tag for child in cases["lost-response"]] == ["system-out"]


def test_junit_counts_what_is_not_observable_as_failures_if_strict() -> None:
    (suite,) = ElementTree.fromstring(junit_report(verification(), strict=True))
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("5", "0")
    assert len(list(suite.iter("failure"))) == 5


def test_junit_survives_bytes_that_xml_cannot_have() -> None:
    odd = exchange(operation().request(), 200, "\x00\x1b[2J</failure>", sent=1.0, answered=2.0)
    verdict = violated(Guarantee.KEY_SYNTAX, [Violation(Fault.KEY_ACCEPTED, "a\x00b", (odd,))], n=1)
    text = junit_report(verification(ProbeRecord(verdict, (odd,), 0.1)))
    (suite,) = ElementTree.fromstring(text)
    (failure,) = suite.iter("failure")
    assert "\ufffd\ufffd[2J</failure>" in (failure.text or "")


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((*broken(), *holding()), "Not safe to retry: 2 guarantees are violated"),
        (broken()[:1], "Not safe to retry: 1 guarantee is violated"),
        ((*holding(), *unobservable()), "2 guarantees are seen to hold, 3 not observable"),
        (holding(), "Safe to retry, as far as was seen: all 2 guarantees hold"),
        (unobservable(), "Nothing could be observed"),
    ],
)
def test_the_page_begins_with_how_it_stands(records: list[ProbeRecord], expected: str) -> None:
    found = verification(*records)
    assert headline(found) == expected
    assert f"<h1>{expected}</h1>" in html_report(found)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = html_report(verification())
    assert re.findall(r"""(?:src|href)\s*=|@import|url\(""", page) == []


def test_the_page_shows_what_a_server_sends_as_text() -> None:
    evil = "<script>alert(1)</script>"
    odd = exchange(operation().request(), 200, evil, sent=1.0, answered=2.0, note=evil)
    verdict = violated(Guarantee.KEY_SYNTAX, [Violation(Fault.KEY_ACCEPTED, evil, (odd,))], n=1)
    page = html_report(verification(ProbeRecord(verdict, (odd,), 0.1)))
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)") >= 3


def test_the_page_fits_a_phone_and_a_dark_screen() -> None:
    try:
        program = browser.program()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with browser.chromium(program) as chromium:
        page = chromium.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
        page.set_content(html_report(verification()))
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(16, 19, 26)"
        assert page.locator("svg.round rect.again").count() == 2
        page.close()


# --- drawings -------------------------------------------------------------------------------------


def test_a_drawing_tells_the_first_success_from_later_ones() -> None:
    drawing = draw(duplicates(20, 3), IETF)
    assert [bar.kind for bar in drawing.bars] == ["busy"] * 17 + ["ran", "again", "again"]
    assert drawing.kinds == ["ran", "again", "busy"]
    assert all(bar.x >= 0 and bar.x + bar.width <= 1000.1 for bar in drawing.bars)
    assert [(share.kind, share.count) for share in shares(duplicates(20, 3), IETF)] == [
        ("ran", 1),
        ("again", 2),
        ("busy", 17),
    ]


def test_a_drawing_is_bounded() -> None:
    drawing = draw(duplicates(ROWS_MAX + 5, 1), IETF)
    assert (len(drawing.bars), drawing.left_out) == (ROWS_MAX, 5)
    assert draw((), IETF).bars == ()


def test_the_largest_round_is_the_one_with_most_duplicates() -> None:
    alone = exchange(operation().request(), 200, "{}", sent=1.0, answered=2.0)
    assert len(largest_round([alone, *duplicates(20, 1)])) == 20
    assert largest_round([alone]) == []
