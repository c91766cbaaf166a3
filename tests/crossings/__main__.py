"""`python -m tests.crossings` writes the matrix into its page."""

from __future__ import annotations

from tests.crossings.page import PAGE, written

PAGE.write_text(written(PAGE.read_text()))
