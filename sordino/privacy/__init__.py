"""What a protocol promises: curves, bounds, prices and the ledger.

Statements that the bounds rest on are in docs/theory.md.

    certify, calibrate   the price of a plan; the smallest noise for a target (`noise_search`)
    spending             the price of a run, what a budget affords
    dp_events            the same question as an event of dp_accounting
    bounds/              the question and one provider a file; `providers` is the whole list,
                         `best_bound` the smallest, `priced_view` whose bound a view gets
    upload_sensitivity   how far one upload can move, round by round; `similar_rounds` joins rounds
    noise_releases       curves of releases under any noise, composed over rounds
    own_noise, participation_caps    clients with noise and budgets to themselves
    guarantee, ledger    a curve with all that gives it meaning; what was spent, on disk
    published            which metrics of a run its promise covers
    stated               what noise and steps amount to without a protocol
    curves/, amplification/    the mathematics
"""
