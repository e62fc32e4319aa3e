"""Experiments of the papers, remade. Run one as `python -m experiments.NAME`."""
