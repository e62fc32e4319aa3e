"""The tables of convergent-dp at the paper's size: cells, what they measure, and how it is shown."""
