"""Sweeps: one protocol trained with several settings and seeds, side by side.

sweep_request.py   the request: keys, values, epsilons, seeds, the price of tuning
sweep_planning.py  the plan: noise calibrated, trials drawn
sweeping.py        `sweep`: trainings run by `train_many`, rows gathered
sweep_folder.py    files, so that an interrupted sweep continues
sweep_results.py   rows, means and spreads
tuning_price.py    what choosing among the runs costs
"""
