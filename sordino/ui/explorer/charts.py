"""A chart on a page: the picture, a sentence for who does not see it, and its table."""

from __future__ import annotations

from typing import Any

import streamlit as st

from sordino.ui.explorer.answers import Chart
from sordino.ui.explorer.figures import described, figure, thinned
from sordino.ui.explorer.look import escaped, number, plain_markdown, table

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
ROWS = 25  # of a table beside a chart


def draw(chart: Chart, *, title: str, key: str, **axes: Any) -> None:
    """Draw a chart with its table, which has every so many rows where there are many."""
    st.plotly_chart(
        figure(chart, title=title, **axes),
        config=CONFIG,
        alt=described(chart, title),
        key=f"chart.{key}",
    )
    with st.expander(plain_markdown(f"{title}: the table")):
        rows = thinned(chart, ROWS).rows()
        head = [escaped(name) for name in rows[0]]
        st.html(
            table(
                head,
                [[number(value) for value in row.values()] for row in rows],
                numbers=range(len(head)),
                label=title,
            )
        )
