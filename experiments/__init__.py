"""Experiments of the papers, remade: commands of their own, too slow for tests. Run as `python -m experiments.NAME`."""
