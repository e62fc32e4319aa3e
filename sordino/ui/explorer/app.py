"""What Streamlit runs for every visitor: three pages behind one bar."""

from __future__ import annotations

import streamlit as st

from sordino.ui.explorer import claims, explore, runs
from sordino.ui.explorer.look import STYLE


def main() -> None:
    """Draw the page that is asked for."""
    st.set_page_config(
        page_title="Sordino", page_icon="🎻", layout="wide", initial_sidebar_state="collapsed"
    )
    st.html(STYLE)
    pages = [
        st.Page(explore.page, title="Explore", url_path="explore", default=True),
        st.Page(runs.page, title="Runs", url_path="runs"),
        st.Page(claims.page, title="Claims", url_path="claims"),
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
