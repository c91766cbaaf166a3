"""A batch that fails after its first statement: what that statement committed stays."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.support.postgres_adapters import STORE_DRIVERS, StoreAdapters, make_claim
from tests.support.postgres_stores import address, emptied

from oncekey.core.commands import Renew
from oncekey.core.errors import StoreUnavailable


@pytest.fixture(params=STORE_DRIVERS)
def adapters(request: pytest.FixtureRequest) -> Iterator[StoreAdapters]:
    adapters = StoreAdapters(request.param)
    yield adapters
    adapters.close()


_CANCELS = """
CREATE OR REPLACE FUNCTION half.cancel() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'as by a timeout' USING ERRCODE = '57014'; END $$;
CREATE OR REPLACE TRIGGER cancels BEFORE UPDATE ON half.records
FOR EACH ROW EXECUTE FUNCTION half.cancel()
"""


def test_s5_a_batch_that_fails_after_its_claims_committed_is_ambiguous(
    adapters: StoreAdapters,
) -> None:
    """The claims of a batch commit before its renewals are written. If the error said that nothing
    happened, their callers would never release those keys."""
    url = address({})
    store = adapters.store(url, **emptied({"schema": "half"}))
    held = make_claim("held")
    renewal = Renew(held.id, held.owner, store.claim(held).fence, 1_000_000)
    claim = make_claim("claimed before that")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CANCELS)
        try:
            with pytest.raises(StoreUnavailable) as raised:
                store.apply([claim, renewal])
            assert raised.value.ambiguous
            assert store.record(claim.id) is not None
            with pytest.raises(StoreUnavailable) as raised:
                store.apply([renewal])
            assert not raised.value.ambiguous  # alone, it surely changed nothing
        finally:
            connection.execute("DROP TRIGGER cancels ON half.records")
