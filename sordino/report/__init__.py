"""Shows runs to people: reports, terminal tables, and the sinks that metrics flow into.

    writing              `write_report`, at the end of every training, which it never fails
    run_summary          everything the page says about a run, with `run_prices`, `spending_trace`
                         and `evidence`
    page                 the page of a run: `tiles`, `phrasing`, `caveats`, `provenance`,
                         templates/, figures of `figures` and `view_figure`
    comparison           the page of several runs
    drawing              figures as SVG, each with a description and a table; `pdf` prints a page
    verification, page_verification    all checks of `sordino verify`
    price_tables, finding_tables, attack_findings, closing_panel    the same in a terminal
    certificate_plots, sensitivity_plots    plots of `certify` and `audit --sensitivity`
    sinks, sink_feeder   TensorBoard and MLflow, fed round by round

A page is one file without script. Templates escape whatever they are given.
"""
