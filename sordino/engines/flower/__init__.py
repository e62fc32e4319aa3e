"""Across machines: the protocol core hosted by Flower. A SuperLink where machines meet, a SuperNode at every client.

Nothing here but `driver`, `agreement` and `custody` may be imported where Flower is not installed.
"""
