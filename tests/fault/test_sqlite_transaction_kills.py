"""kill -9 before every statement of an operation in the caller's own SQLite transaction.

Other connections see both the rows and the finished key, or neither, and a retry runs or replays at
once (I1, I10): no connection waits for a lock, so a retry that had to wait would be refused.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault import killed_sqlite_transaction
from tests.fault.killed_sqlite_transaction import KINDS, NEVER, ORDERS, Order, Shop, rows

from oncekey import OperationFailed

# A child is killed between any two of these, and between those that the driver adds.
BEGINNING = ["BEGIN IMMEDIATE", "INSERT INTO oncekey_records", "SAVEPOINT", "INSERT INTO orders"]
ENDING = ["RELEASE", "UPDATE oncekey_records", "COMMIT"]
EXPECTED = {
    "returns": [*BEGINNING, *ENDING],
    "refuses": [*BEGINNING, "ROLLBACK TO", *ENDING],
}


def landmarks(statements: list[str]) -> list[str]:
    """Return the beginnings of those statements that change something."""
    known = EXPECTED["refuses"]
    found = (next((name for name in known if sql.startswith(name)), "") for sql in statements)
    return [name for name in found if name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_i1_a_transaction_killed_before_any_statement_leaves_all_or_nothing(
    tmp_path: Path, kind: str, order: str
) -> None:
    done = subprocess.run(
        [sys.executable, killed_sqlite_transaction.__file__, tmp_path, kind, order],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    statements: list[str] = json.loads(done.stdout)
    assert landmarks(statements) == EXPECTED[order]
    assert statements[-1] == "COMMIT"

    async def check(number: int) -> None:
        committed = number == len(statements)
        finished = {"returns": "succeeded", "refuses": "failed"}[order]
        kept = ["tea"] if order == "returns" else []
        async with Shop(kind, tmp_path / f"{number}.db") as shop:
            assert await shop.state("k") == (finished if committed else None), statements[number:]
            assert rows(shop.path) == (kept if committed else [])
            # The retry runs or replays at once.
            if committed and order == "refuses":
                with pytest.raises(OperationFailed, match="out of tea"):
                    await shop.inside("k", NEVER)
            else:
                result = await shop.inside("k", NEVER if committed else Order())
                assert (result.value, result.replayed) == ("done", committed)
                assert result.attempt == 1  # the killed transaction left no trace
            await shop.commit()
            assert rows(shop.path) == (kept if committed else ["tea"])
            assert shop.ran == (0 if committed else 1)

    async def check_all() -> None:
        for number in range(len(statements) + 1):
            await check(number)

    asyncio.run(check_all())
