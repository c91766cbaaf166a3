"""The search: a form, and one page of the keys that match it, newest claim first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from oncekey.core.errors import ConfigurationError
from oncekey.dashboard.page_request import PageRequest
from oncekey.dashboard.request_checks import FIELD_MAX_CHARS, Refused
from oncekey.engine.keys import administration
from oncekey.engine.keys.key_list import STATES, Listing, query_of
from oncekey.engine.keys.key_status import time_of

SEARCH_ROWS_MAX: Final = 50


class Field(NamedTuple):
    """A field of the form: its name, its label, and what to type."""

    name: str
    label: str
    hint: str


FIELDS: Final = (
    Field("tag", "Tag", "from a log line, or its beginning"),
    Field("key", "Key", "where raw keys are stored"),
    Field("scope", "Scope", "the caller, exactly"),
    Field("operation", "Operation", "its name, exactly"),
    Field("route", "Route", "POST /charges, or its beginning"),
)


async def search(request: PageRequest) -> Response:
    values, states, expired, after = _asked(request)
    listing: Listing | None = None
    problem = ""
    try:
        query = query_of(
            state=states,
            scope=values["scope"] or None,
            operation=values["operation"] or None,
            route=values["route"] or None,
            key=values["key"] or None,
            tag=values["tag"],
            expired=expired,
        )
        listing = await request.keys.run(administration.list_keys(query, SEARCH_ROWS_MAX, after))
    except ConfigurationError as error:
        problem = str(error)
    return request.page(
        "search.html",
        status=400 if problem else 200,
        page="search",
        fields=FIELDS,
        values=values,
        states=list(STATES),
        chosen=states,
        expired=expired,
        after=after,
        listing=listing,
        problem=problem,
        field_max=FIELD_MAX_CHARS,
        is_full=listing is not None and len(listing.keys) == SEARCH_ROWS_MAX,
        reached=_reached(listing),
        next=_next_page(values, states, expired, listing),
    )


def _asked(request: PageRequest) -> tuple[dict[str, str], list[str], bool, str | None]:
    """The fields, the states, whether expired keys are wanted, and the cursor of the page."""
    given = request.request.query_params
    if any(len(value) > FIELD_MAX_CHARS for _, value in given.multi_items()):
        raise Refused(400, f"A field may have {FIELD_MAX_CHARS} characters.")
    values = {field.name: given.get(field.name, "").strip() for field in FIELDS}
    states = list(dict.fromkeys(given.getlist("state")))
    return values, states, given.get("expired") == "1", given.get("after") or None


def _reached(listing: Listing | None) -> str:
    """How far back the page has looked, if it has not looked at everything."""
    if listing is None or listing.next is None:
        return ""
    fence = int(listing.next.partition("-")[0])
    return f"{time_of(fence):%Y-%m-%d %H:%M:%S} UTC"


def _next_page(
    values: Mapping[str, str], states: Sequence[str], expired: bool, listing: Listing | None
) -> str:
    """The query of the next page."""
    if listing is None or listing.next is None:
        return ""
    pairs = [(name, value) for name, value in values.items() if value]
    pairs += [("state", state) for state in states]
    pairs += [("expired", "1")] if expired else []
    return urlencode([*pairs, ("after", listing.next)])
