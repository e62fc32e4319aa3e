"""Measures speed, memory and scaling of training, beside the alternatives."""
