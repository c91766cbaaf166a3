"""The code in the pages on queues runs, as it is printed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.page_runs import OF_QUEUES, run_code
from tests.docs.pages import name_of


@pytest.mark.parametrize("page", OF_QUEUES, ids=name_of)
def test_the_code_of_a_page_on_queues_runs(page: Path, tmp_path: Path) -> None:
    run_code(page, tmp_path)
