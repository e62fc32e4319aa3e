"""How fast, how small and how scalable a training is, against the alternatives: `python -m benchmarks`."""
