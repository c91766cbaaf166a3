"""The way of a search through a database: how much each statement looks at, and when it ends."""

from __future__ import annotations

from oncekey.core.search import LOOKED_AT_FIRST, LOOKED_AT_MAX, NEWEST, Cursor, Walk

HERE = Cursor(1, b"\0" * 16)


def test_the_second_statement_looks_at_all_that_is_left() -> None:
    walk = Walk(10, NEWEST)
    assert (walk.most, walk.wanted) == (LOOKED_AT_FIRST, 10)
    walk.add([], LOOKED_AT_FIRST, HERE)
    assert (walk.most, walk.last) == (LOOKED_AT_MAX - LOOKED_AT_FIRST, HERE)
    walk.add([], walk.most, HERE)
    assert walk.most == 0
    assert walk.page(7) == ((), 7, LOOKED_AT_MAX, HERE)


def test_it_ends_with_the_last_record() -> None:
    walk = Walk(10, NEWEST)
    walk.add([], LOOKED_AT_FIRST - 1, HERE)
    assert walk.most == 0
    assert walk.page(7).next is None


def test_a_large_page_looks_at_more_from_the_start_and_never_at_too_much() -> None:
    assert Walk(1_000, NEWEST).most == 2_000
    assert Walk(LOOKED_AT_MAX, NEWEST).most == LOOKED_AT_MAX
