"""What each paper claimed: published formulas as printed, their verdicts, and counterexamples that run; never used for a promise.

`catalogue` lists the claims and checks one; `tables` and `growth` remake the papers' tables of numbers and of rates. Modules here import
numpy and scipy inside functions, so that the list of claims is there at once.
"""
