"""What is given along with a request, beyond the request itself: refused where it has no meaning,
not carried on to where a redirect leads, and kept until an answer has settled it."""

from __future__ import annotations

import pytest
from tests.client.callers import RequestsCaller, calling
from tests.client.scripted import Answer, Drop, serving

from oncekey.client import Journal, NotSent


@pytest.mark.parametrize("given", [{"intent": "order-17"}, {"key": "order-17"}])
def test_what_is_given_for_a_request_that_gets_no_key_is_refused(
    name: str, given: dict[str, str]
) -> None:
    with serving(Answer()) as server, calling(name) as caller:
        if name == "requests" and "key" in given:
            caller.send("GET", server.url, given=given)  # a header as any other: not ours
            return
        with pytest.raises(NotSent, match=r"a GET gets no key.*Nothing was sent"):
            caller.send("GET", server.url, given=given)
    assert server.seen == []


def test_a_redirect_to_a_request_without_a_key_is_followed(name: str, journal: Journal) -> None:
    """httpx copies what was given to the request that the redirect makes."""
    away = Answer(303, b"", {"Location": "/receipt"})
    with serving(away, Answer()) as server, calling(name, journal=journal) as caller:
        if not isinstance(caller, RequestsCaller):
            caller.client.follow_redirects = True
        assert caller.post(server.url, given={"intent": "order-17"}).status == 200
    assert [seen.method for seen in server.seen] == ["POST", "GET"]
    assert [seen.all("Oncekey-Intent") for seen in server.seen] == [[], []]


def test_a_conflict_after_a_lost_answer_keeps_the_key(name: str, journal: Journal) -> None:
    given = {"intent": "order-17"}
    with (
        serving(Drop(), Answer(409), Answer()) as server,
        calling(name, journal=journal) as caller,
    ):
        got = caller.post(server.url, given=given)
        assert got.delivery is not None
        assert (got.status, got.delivery.conclusive) == (409, False)
        assert journal.open_entries() == 1
        caller.post(server.url, given=given)
    assert len(set(server.keys)) == 1
