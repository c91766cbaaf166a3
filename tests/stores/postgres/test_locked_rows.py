"""A batch does not wait for a row that another session holds locked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import StoreAdapters, make_claim, make_finish
from tests.support.postgres_stores import emptied, server

from oncekey.core.commands import Claimed, Done, Release, Renew
from oncekey.core.errors import StoreUnavailable

OPTIONS: dict[str, dict[str, Any]] = {
    "insert": {},
    "row_lock": {"claim": "row_lock"},
    "advisory_lock": {"claim": "advisory_lock"},
    "ring": {"retention": "ring", "ring_slots": 8, "ring_period": "3h"},
}
HOLDS = {
    "for update": "SELECT 1 FROM {} WHERE id = %s FOR UPDATE",
    "updated": "UPDATE {} SET note = 'mine' WHERE id = %s",
}
# What comes to the locked row: an expired or dead key's claim, an owner's finish and others.
COMMANDS: dict[str, Callable[[Any, int], Any]] = {
    "claim": lambda claim, fence: claim._replace(owner=b"n" * 16),
    "claim again": lambda claim, fence: claim,
    "finish": make_finish,
    "renew": lambda claim, fence: Renew(claim.id, claim.owner, fence, 1_000_000),
    "release": lambda claim, fence: Release(claim.id, claim.owner, fence),
}


@contextmanager
def held(how: str, schema: str, id: bytes) -> Iterator[None]:
    """An operator's transaction that was left open."""
    with closing(psycopg.connect(server().url())) as other:
        other.execute(HOLDS[how].format(f'"{schema}".records').encode(), (id.hex(),))
        yield
        other.rollback()


@pytest.mark.parametrize("layout", OPTIONS)
def test_other_commands_of_a_batch_with_a_locked_row_succeed(
    adapters: StoreAdapters, layout: str
) -> None:
    # Each layout meets both holds, one with each driver.
    how = list(HOLDS)[(list(OPTIONS).index(layout) + adapters.is_async) % 2]
    full = emptied(OPTIONS[layout])
    store = adapters.store(server().url(), **full)
    claim = make_claim("held", lease=1)  # its lease is over: claims write
    fence = store.claim(claim).fence
    with held(how, full["schema"], claim.id):
        for number, make in enumerate(COMMANDS.values()):
            names = [f"{number}{side}" for side in "ab"]
            first, middle, last = store.apply(
                [make_claim(names[0]), make(claim, fence), make_claim(names[1])]
            )
            assert isinstance(first, Claimed)
            assert isinstance(last, Claimed)
            assert isinstance(middle, StoreUnavailable), middle
            assert "holds a lock on this key's row" in str(middle)
        with pytest.raises(StoreUnavailable, match="holds a lock on this key"):
            store.apply([make_finish(claim, fence)])
        assert store.sweep(10) == 0
    assert store.apply([make_finish(claim, fence)]) == [Done()]
