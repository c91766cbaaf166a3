"""The few SVG shapes that diagrams are made of, coloured by the page they are in."""

from __future__ import annotations

from html import escape

CHAR_WIDTH = 6.7  # of the page's font at 13 pixels, a little more than its average
LINE_HEIGHT = 17


class DiagramError(Exception):
    """A diagram's text has a line that cannot be drawn."""


def text_width(text: str) -> float:
    return max((len(line) for line in split_lines(text)), default=0) * CHAR_WIDTH


def split_lines(text: str) -> list[str]:
    """The lines of a label; Mermaid writes a line break as <br/>."""
    return [part.strip() for part in text.replace("<br>", "<br/>").split("<br/>")]


def label(x: float, y: float, text: str, *, anchor: str = "middle", css: str = "label") -> str:
    """Text whose last line stands on y."""
    lines = split_lines(text)
    first = y - (len(lines) - 1) * LINE_HEIGHT
    spans = "".join(
        f'<tspan x="{x:.0f}" y="{first + number * LINE_HEIGHT:.0f}">{escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return f'<text class="{css}" text-anchor="{anchor}">{spans}</text>'


def box(x: float, y: float, width: float, height: float, *, css: str, radius: int = 5) -> str:
    """A rectangle whose upper left corner is at x and y."""
    return (
        f'<rect class="{css}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" rx="{radius}"/>'
    )


def path(points: str, *, css: str, arrow: bool = True) -> str:
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<path class="{css}" d="{points}"{end}/>'


def document(width: float, height: float, title: str, shapes: list[str]) -> str:
    """The whole picture. It shrinks with the page and is never enlarged."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px" role="img" aria-label="{escape(title, quote=True)}">'
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/>'
        f"</marker></defs>{''.join(shapes)}</svg>"
    )
