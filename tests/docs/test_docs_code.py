"""The code in the documentation runs, as it is printed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.page_runs import OF_QUEUES, RUN_TWICE, WITH_CODE, run_code
from tests.docs.pages import name_of


def test_the_first_pages_have_code_to_run() -> None:
    assert set(RUN_TWICE) <= {name_of(page) for page in WITH_CODE}


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in OF_QUEUES], ids=name_of)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run_code(page, tmp_path)
