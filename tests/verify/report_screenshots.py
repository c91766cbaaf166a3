"""`python -m tests.verify.report_screenshots FOLDER` takes pictures of the verifier's page.

They are in light and dark, on a desk and on a phone. One of them is in docs/assets.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize
from tests.demo.browser import chromium, program
from tests.verify.sample_verification import verification

from oncekey.verify.report_html import html_report

DESK: ViewportSize = {"width": 1080, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}


def take(folder: Path) -> None:
    page = html_report(verification())
    looks: list[tuple[str, ViewportSize, Literal["light", "dark"]]] = [
        ("light", DESK, "light"),
        ("dark", DESK, "dark"),
        ("phone", PHONE, "light"),
    ]
    with chromium(program()) as browser:
        for name, size, scheme in looks:
            opened = browser.new_page(viewport=size, color_scheme=scheme)
            opened.set_content(page)
            opened.screenshot(path=folder / f"verify-report-{name}.png")
            opened.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
