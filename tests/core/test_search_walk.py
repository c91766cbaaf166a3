"""The way of a search through a database: how much each statement looks at, and when it ends."""

from __future__ import annotations

from tests.core.sample_records import record

from oncekey.core.search import LOOKED_AT_FIRST, LOOKED_AT_MAX, NEWEST, Cursor, Walk

HERE = Cursor(1, b"\0" * 16)


def test_the_second_statement_looks_at_all_that_is_left() -> None:
    walk = Walk(10, NEWEST)
    assert (walk.most, walk.wanted) == (LOOKED_AT_FIRST, 10)
    walk.add([], [], LOOKED_AT_FIRST, HERE)
    assert (walk.most, walk.last) == (LOOKED_AT_MAX - LOOKED_AT_FIRST, HERE)
    walk.add([], [], walk.most, HERE)
    assert walk.most == 0
    assert walk.page(7) == ((), 7, LOOKED_AT_MAX, HERE)


def test_it_ends_with_the_last_record() -> None:
    walk = Walk(10, NEWEST)
    walk.add([], [], LOOKED_AT_FIRST - 1, HERE)
    assert walk.most == 0
    assert walk.page(7).next is None


def test_a_large_page_looks_at_more_from_the_start_and_never_at_too_much() -> None:
    assert Walk(1_000, NEWEST).most == 2_000
    assert Walk(LOOKED_AT_MAX, NEWEST).most == LOOKED_AT_MAX


def test_a_page_that_ends_at_its_limit_has_looked_at_the_records_up_to_there() -> None:
    """The places of a second statement begin after those of the first."""
    walk = Walk(2, NEWEST)
    one, two, three = (record(fence=fence) for fence in (3, 2, 1))
    walk.add([one], [LOOKED_AT_FIRST], LOOKED_AT_FIRST, HERE)
    walk.add([two, three], [5, 9], 40, HERE)
    page = walk.page(7)
    assert page == ((one, two), 7, LOOKED_AT_FIRST + 5, Cursor(two.fence, two.id))
