"""Shows a chart on a page: the picture, a description in words, and its table."""

from __future__ import annotations

from typing import Any

import streamlit as st

from sordino.explorer.chart_figures import build_figure, describe_chart, thin_chart
from sordino.explorer.page_style import build_table, escape_html, escape_markdown, format_number
from sordino.explorer.results import Chart

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
# The largest number of rows in the table of a chart.
MOST_ROWS = 25


def show_chart(
    chart: Chart,
    *,
    title: str,
    key: str,
    **axes: Any,
) -> None:
    """Shows a chart with its table.

    Args:
        chart: The chart to draw.
        title: The title of the chart.
        key: The key of the chart, unique on the page.
        **axes: Options of `build_figure`.
    """
    st.plotly_chart(
        build_figure(chart, title=title, **axes),
        config=CONFIG,
        alt=describe_chart(chart, title),
        key=f"chart.{key}",
    )
    with st.expander(escape_markdown(f"{title}: the table")):
        rows = thin_chart(chart, MOST_ROWS).rows()
        head = [escape_html(name) for name in rows[0]]
        cells = [[format_number(value) for value in row.values()] for row in rows]
        st.html(build_table(head, cells, numbers=range(len(head)), label=title))
