"""Draws the flowcharts of the pages when the site is built, so that browsers need no script for them.

The charts are written in Mermaid, which code hosts also draw. Only `flowchart TB` is supported, with lines such as
`a["text"] --> b`.
"""

import html
import re
from collections.abc import Mapping
from typing import Any

_EDGE = re.compile(r'^\s*(\w+)(?:\["(.*?)"\])?\s*-->\s*(\w+)(?:\["(.*?)"\])?\s*$')
_CHARACTER, _LINE, _PADDING, _GAP = 7.3, 18, 12, 28  # pixels, with a font of 14 pixels


def draw(source: str, *_: Any, **__: Any) -> str:
    """Formatter for `pymdownx.superfences`. Returns the chart as SVG, in the colours of the page."""
    texts: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    for line in source.strip().splitlines()[1:]:
        a, text_a, b, text_b = _EDGE.match(line).groups()
        edges.append((a, b))
        for name, text in ((a, text_a), (b, text_b)):
            texts[name] = text or texts.get(name, name)
    # The text of a node is a path and its purpose, shown on two lines.
    lines = {name: re.sub(r": | — ", "\n", text, count=1).split("\n") for name, text in texts.items()}
    ranks = _ranks(texts, edges)
    rows = [[name for name in texts if ranks[name] == rank] for rank in range(max(ranks.values()) + 1)]
    widths = {name: max(map(len, parts)) * _CHARACTER + 2 * _PADDING for name, parts in lines.items()}
    row_widths = [sum(widths[name] + _GAP for name in row) - _GAP for row in rows]
    total, top = max(row_widths), 1.0
    boxes: dict[str, tuple[float, float, float]] = {}  # name -> (centre, top, height) of the box
    for row, row_width in zip(rows, row_widths, strict=True):
        height, left = max(len(lines[name]) for name in row) * _LINE + _PADDING, (total - row_width) / 2 + 1
        for name in row:
            boxes[name] = left + widths[name] / 2, top, height
            left += widths[name] + _GAP
        top += height + _GAP
    shapes = [_arrow(boxes[a], boxes[b]) for a, b in edges]
    shapes += [_box(*boxes[name], widths[name], lines[name]) for name in texts]
    size = f"{total + 2:.0f} {top - _GAP + 1:.0f}"
    marker = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    marker += '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
    head = f'<svg class="flowchart" role="img" viewBox="0 0 {size}" style="width: {total + 2:.0f}px">'
    return f"{head}<defs>{marker}</defs>{''.join(shapes)}</svg>"


def _ranks(names: Mapping[str, str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Returns the row of each node: below all its predecessors; without predecessors, just above its successors."""
    ranks = dict.fromkeys(names, 0)
    for _ in names:
        for a, b in edges:
            ranks[b] = max(ranks[b], ranks[a] + 1)
    for name in ranks.keys() - {b for _, b in edges}:
        ranks[name] = min(ranks[b] for a, b in edges if a == name) - 1
    return ranks


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    (x, y, height), (x2, y2, _) = start, end
    path = f"M{x:.0f} {y + height:.0f}L{x2:.0f} {y2:.0f}"
    return f'<path d="{path}" stroke="currentColor" marker-end="url(#arrow)"/>'


def _box(x: float, y: float, height: float, width: float, lines: list[str]) -> str:
    rectangle = f'<rect x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4"/>'
    middle = y + height / 2 - (len(lines) - 1) * _LINE / 2
    texts = (
        f'<text x="{x:.0f}" y="{middle + i * _LINE:.0f}">{html.escape(line)}</text>' for i, line in enumerate(lines)
    )
    return rectangle + "".join(texts)
