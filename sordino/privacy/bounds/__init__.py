"""Bounds on what an adversary learns: a question, and one provider of bounds a file."""
