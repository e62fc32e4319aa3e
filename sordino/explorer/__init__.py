"""The explorer: three pages in a browser.

What a page shows is computed by functions that know nothing about pages; pages only draw.

    server               Streamlit only on this machine, reports served as they are
    app                  the pages: `explore_page`, `runs_page`, `claims_page`
    controls, setting    what a person chooses, as a protocol that travels in the address
    results              answers about it, as values
    watching, watched_folder    run folders as they are written
    measuring            counterexamples in another process
    background           threads that work out what a page does not wait for
    page_style, chart_figures, charts    what comes from outside is escaped; charts have tables
"""
