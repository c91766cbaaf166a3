"""Measures of PostgreSQL beyond what is counted: the server's estimate (S12).

What is counted is compared with another count by the contract suite.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import make_claim
from tests.support.postgres_stores import DATABASE, server
from tests.support.servers.processes import fresh_name

from oncekey.stores.postgres import PostgresStore, postgres_search

RECORDS = 300
RING = {"retention": "ring", "ring_slots": 40, "ring_period": "1d"}


@pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])
@pytest.mark.parametrize("is_analyzed", [True, False])
def test_s12_many_records_are_estimated_by_the_server(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_analyzed: bool
) -> None:
    monkeypatch.setattr(postgres_search, "MEASURE_MAX", RECORDS // 3)
    schema = fresh_name("measured")
    store = PostgresStore(server().url(DATABASE), schema=schema, **options)
    store.apply([make_claim(f"{number}") for number in range(RECORDS)])
    with psycopg.connect(server().url(DATABASE), autocommit=True) as admin:
        if is_analyzed:
            admin.execute(f'ANALYZE "{schema}".records')
        found = admin.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname LIKE 'records%%' AND c.relkind = 'r'",
            (schema,),
        ).fetchone()
    measures = store.measure()
    least, most = (RECORDS - 100, RECORDS + 100) if is_analyzed else (RECORDS // 3, RECORDS + 100)
    assert least <= measures.rows <= most
    assert found == (measures.bytes,)
    store.close()
