"""Storage of a run: its folder, its files, the uploads that it archives, or memory alone."""
