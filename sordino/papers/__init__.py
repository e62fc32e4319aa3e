"""What each paper claimed: published formulas as printed, verdicts, and counterexamples that run.

`catalogue` lists the claims and checks one; `prifedsync_tables` and `growth` remake the papers'
tables of numbers and of rates. No promise rests on anything here. Modules import numpy and scipy
inside functions, so that the list of claims is there at once.
"""
