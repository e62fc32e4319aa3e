"""Holds the style of the pages, escapes text from outside, and builds tables in HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

STYLE = """
<style>
[data-testid="stMainBlockContainer"] { padding-top: 4rem; padding-bottom: 4rem; }
[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] p {
  color: inherit; opacity: 0.95;
}
[data-testid="stBaseButton-primary"] p, [data-tag] * { color: light-dark(#FFFFFF, #00131F); }
[data-stale="true"] { opacity: 1 !important; }
[data-testid="stHeading"] h2 { font-size: 1.4rem; padding: 0.8rem 0 0.3rem 0; }
.answer {
  font-size: 1.9rem; line-height: 1.35; font-weight: 600; margin: 0.2rem 0 0.4rem 0;
  max-width: 60rem;
}
.answer .epsilon { color: light-dark(#0072B2, #56B4E9); white-space: nowrap; }
.under { opacity: 0.85; margin: 0 0 0.6rem 0; max-width: 60rem; }
table.plain { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
table.plain th, table.plain td {
  text-align: left; padding: 0.38rem 0.7rem; border-bottom: 1px solid rgba(128, 128, 128, 0.28);
}
table.plain th { font-weight: 600; }
table.plain td.number, table.plain th.number { text-align: right; white-space: nowrap; }
table.plain tr.chosen td, table.plain tr.chosen th { background: rgba(0, 114, 178, 0.10); }
table.plain th.row { font-weight: 500; }
del.false { text-decoration-thickness: 2px; cursor: help; }
.small { font-size: 0.85rem; opacity: 0.85; }
table.plain caption {
  text-align: left; caption-side: top; font-size: 0.9rem; opacity: 0.85; padding-bottom: 0.3rem;
}
.verdict { white-space: nowrap; font-weight: 600; }
.scroll { overflow-x: auto; }
</style>
"""

# Marks of verdicts, which need no colour.
MARKS = {
    "sound": "✓",
    "conditional": "△",
    "asymptotic": "≈",
    "unsound": "✗",
}
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+-.!|~:$^"})


def escape_html(text: str) -> str:
    """Escapes text for HTML.

    Args:
        text: Text from outside.

    Example:
        >>> escape_html("<b>")
        '&lt;b&gt;'
    """
    return html.escape(text, quote=True)


def escape_markdown(text: str) -> str:
    r"""Escapes text for Markdown, so that it holds no link and no picture.

    Args:
        text: Text from outside.

    Example:
        >>> escape_markdown("[x](y)")
        '\\[x\\]\\(y\\)'
    """
    return text.translate(MARKDOWN)


def build_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    label: str,
    numbers: Sequence[int] = (),
    chosen: int | None = None,
    caption: str = "",
) -> str:
    """Builds a table in HTML.

    Args:
        head: The names of the columns, as HTML.
        rows: The cells, as HTML; the first cell of a row is its head.
        label: A description for screen readers.
        numbers: The columns that are aligned to the right.
        chosen: The row that is marked; None for none.
        caption: A text above the table.

    Example:
        >>> html = build_table(["view", "epsilon"], [["server", "4"]], label="Views", numbers=[1])
        >>> html.count("<td")
        1
    """
    classes = [""] * len(head)
    for column in numbers:
        classes[column] = 'class="number"'
    top = "".join(
        f'<th scope="col" {classes[column]}>{name}</th>' for column, name in enumerate(head)
    )
    body = []
    for index, (first, *others) in enumerate(rows):
        cells = "".join(
            f"<td {classes[column]}>{cell}</td>" for column, cell in enumerate(others, start=1)
        )
        marked = ""
        if index == chosen:
            marked = ' class="chosen"'
        body.append(f'<tr{marked}><th scope="row" class="row">{first}</th>{cells}</tr>')
    above = ""
    if caption:
        above = f"<caption>{escape_html(caption)}</caption>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape_html(label)}">'
        f'<table class="plain">{above}<thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def format_number(value: float) -> str:
    """Returns a number for the table of a chart.

    Args:
        value: Any number; NaN becomes an empty text.

    Example:
        >>> [format_number(value) for value in (3, 0.123456, math.inf, math.nan)]
        ['3', '0.1235', 'no limit', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "no limit"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def format_verdict(word: str) -> str:
    """Returns a verdict with its mark, as HTML.

    Args:
        word: The verdict.

    Example:
        >>> format_verdict("unsound")
        '<span class="verdict">✗ unsound</span>'
    """
    return f'<span class="verdict">{MARKS.get(word, "")} {escape_html(word)}</span>'
