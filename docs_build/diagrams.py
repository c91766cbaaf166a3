"""Turns the Mermaid blocks of the documentation into SVG, so that the site needs no script.

Mermaid is what code hosts draw by themselves. The site draws the same text here, while it is
built: a page then shows its diagrams offline, and follows the theme's colours. Only what our pages
use is understood; anything else is an error that names the line.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docs_build.sequence_diagram import draw_sequence
from docs_build.state_diagram import draw_states
from docs_build.svg import DiagramError


def fence(
    source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **kwargs: Any
) -> str:
    """The custom fence of pymdownx.superfences for ```mermaid blocks."""
    return f'<div class="diagram">{draw(source)}</div>'


def draw(source: str) -> str:
    """The SVG of one Mermaid block."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    if not lines:
        raise DiagramError("the diagram is empty")
    kind, *body = lines
    if kind == "sequenceDiagram":
        return draw_sequence(body)
    if kind == "stateDiagram-v2":
        return draw_states(body)
    raise DiagramError(f"cannot draw {escape(kind)}: only sequenceDiagram and stateDiagram-v2")
