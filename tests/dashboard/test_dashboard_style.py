"""The style sheet: texts stand out from what is behind them, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STATIC = files("oncekey.dashboard") / "static"
CSS = (STATIC / "dashboard.css").read_text("utf-8")
CONTRAST_MIN = 4.5  # WCAG 2.2, level AA
TEXTS = [
    *((ink, behind) for ink in ("ink", "soft", "accent", "bad") for behind in ("ground", "panel")),
    ("accent-ink", "accent"),
    ("panel", "bad"),
    ("ink", "line"),
    *((name, f"{name}-bg") for name in ("good", "calm", "wait", "odd", "bad")),
]


def palette(scheme: str) -> dict[str, str]:
    light, _, rest = CSS.partition("@media (prefers-color-scheme: dark)")
    text = light if scheme == "light" else rest.partition("* {")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", text))


def luminance(hexadecimal: str) -> float:
    digits = hexadecimal.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(scheme: str) -> None:
    hues = palette(scheme)
    weak = {
        pair: round(contrast(hues[pair[0]], hues[pair[1]]), 2)
        for pair in TEXTS
        if contrast(hues[pair[0]], hues[pair[1]]) < CONTRAST_MIN
    }
    assert weak == {}


def test_contrast_is_computed_as_the_guidelines_say() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


def test_nothing_is_loaded_from_elsewhere_and_no_template_has_inline_code() -> None:
    pages = files("oncekey.dashboard") / "templates"
    for page in pages.iterdir():
        text = page.read_text("utf-8")
        assert not re.search(r"\sstyle=|<style|\son\w+=|https?://|\|\s*safe\b", text), page.name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    for name in ("dashboard.css", "refresh.js"):
        assert not re.search(r"url\(|@import|https?://", (STATIC / name).read_text("utf-8"))
