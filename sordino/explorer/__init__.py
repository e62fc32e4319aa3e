"""The explorer: three pages in a browser.

What a page shows is computed by functions that know nothing of pages; pages only draw.

    server               serves the pages on this machine alone, and the reports of runs
    app                  the pages: `explore_page`, `runs_page`, `claims_page`
    controls, setting    the controls of a federation; their position is in the address
    results              the prices, curves and published bounds of a setting
    watching, watched_folder    reads run folders while they are written
    measuring            runs counterexamples in another process
    background           threads that compute what a page does not wait for
    page_style, chart_figures, charts    tables and charts, in which all text is escaped
"""
