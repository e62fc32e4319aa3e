"""Runs for every visitor: a bar of navigation, and the page that was chosen."""

from __future__ import annotations

import streamlit as st

from sordino.explorer import claims_page as claims
from sordino.explorer import explore_page as explore
from sordino.explorer import runs_page as runs
from sordino.explorer.page_style import STYLE


def main() -> None:
    """Draws the page that the visitor has chosen."""
    st.set_page_config(
        page_title="Sordino",
        page_icon="🎻",
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    # Before any page is drawn, which would otherwise be seen for a moment without its style.
    st.html(STYLE)
    pages = [
        st.Page(explore.draw_page, title="Explore", default=True),
        st.Page(runs.draw_page, title="Runs", url_path="runs"),
        st.Page(claims.draw_page, title="Claims", url_path="claims"),
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
