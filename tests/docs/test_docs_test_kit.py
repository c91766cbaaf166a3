"""The tests of the page on testing an app are tests: pytest collects them, and they pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, files

PAGE = DOCS / "how-to" / "test-your-app.md"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    written = files(PAGE)
    for name, code in written.items():
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "oncekey_pytest"),
            *("-p", "no:cacheprovider", "-q", "--strict-markers"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    defined = sum(len(re.findall(r"^def test_", code, re.M)) for code in written.values())
    assert f"{defined} passed" in done.stdout
    assert defined >= 9
