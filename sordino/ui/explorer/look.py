"""How the pages look: a few lines of style, and pieces of HTML in which everything that comes from outside is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

STYLE = """
<style>
[data-testid="stMainBlockContainer"] { padding-top: 4rem; padding-bottom: 4rem; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p { color: inherit; opacity: 0.95; }
[data-testid="stBaseButton-primary"] p, [data-tag] * { color: light-dark(#FFFFFF, #00131F); }
[data-stale="true"] { opacity: 1 !important; }
[data-testid="stHeading"] h2 { font-size: 1.4rem; padding: 0.8rem 0 0.3rem 0; }
.answer { font-size: 1.9rem; line-height: 1.35; font-weight: 600; margin: 0.2rem 0 0.4rem 0; max-width: 60rem; }
.answer .epsilon { color: light-dark(#0072B2, #56B4E9); white-space: nowrap; }
.under { opacity: 0.85; margin: 0 0 0.6rem 0; max-width: 60rem; }
table.plain { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table.plain th, table.plain td { text-align: left; padding: 0.38rem 0.7rem; border-bottom: 1px solid rgba(128, 128, 128, 0.28); }
table.plain th { font-weight: 600; }
table.plain td.number, table.plain th.number { text-align: right; white-space: nowrap; }
table.plain tr.chosen td, table.plain tr.chosen th { background: rgba(0, 114, 178, 0.10); }
table.plain th.row { font-weight: 500; }
del.false { text-decoration-thickness: 2px; cursor: help; }
.small { font-size: 0.85rem; opacity: 0.85; }
table.plain caption { text-align: left; caption-side: top; font-size: 0.9rem; opacity: 0.85; padding-bottom: 0.3rem; }
.verdict { white-space: nowrap; font-weight: 600; }
.scroll { overflow-x: auto; }
</style>
"""

MARKS = {
    "sound": "✓",
    "conditional": "△",
    "asymptotic": "≈",
    "unsound": "✗",
}  # a verdict without its colour
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+-.!|~:$^"})


def escaped(text: str) -> str:
    """Text in HTML, with nothing in it that is HTML.

    Example:
        >>> escaped("<b>")
        '&lt;b&gt;'
    """
    return html.escape(text, quote=True)


def plain_markdown(text: str) -> str:
    """Text in Markdown, with nothing in it that is Markdown: no link, no picture.

    Example:
        >>> plain_markdown("[x](y)")
        '\\\\[x\\\\]\\\\(y\\\\)'
    """
    return text.translate(MARKDOWN)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str,
    numbers: Sequence[int] = (),
    chosen: int | None = None,
    caption: str = "",
) -> str:
    """A table; cells are HTML already. `label` is for who does not see it, `numbers` stand to the right, the row `chosen` is marked.

    Example:
        >>> table(["view", "epsilon"], [["server", "4"]], label="Views", numbers=[1]).count("<td")
        1
    """
    aligned = ['class="number"' if column in numbers else "" for column in range(len(head))]
    top = "".join(
        f'<th scope="col" {aligned[column]}>{name}</th>' for column, name in enumerate(head)
    )
    body = []
    for index, row in enumerate(rows):
        first, *others = row
        cells = "".join(
            f"<td {aligned[column]}>{cell}</td>" for column, cell in enumerate(others, start=1)
        )
        marked = ' class="chosen"' if index == chosen else ""
        body.append(f'<tr{marked}><th scope="row" class="row">{first}</th>{cells}</tr>')
    said = f"<caption>{escaped(caption)}</caption>" if caption else ""
    whole = f'<table class="plain">{said}<thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(label)}">{whole}</div>'


def number(value: float) -> str:
    """A number of a table beside a chart.

    Example:
        >>> number(3), number(0.123456), number(math.inf), number(math.nan)
        ('3', '0.1235', 'no limit', '')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "no limit"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def verdict(word: str) -> str:
    """A verdict with its mark.

    Example:
        >>> verdict("unsound")
        '<span class="verdict">✗ unsound</span>'
    """
    return f'<span class="verdict">{MARKS.get(word, "")} {escaped(word)}</span>'
