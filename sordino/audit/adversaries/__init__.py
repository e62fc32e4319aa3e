"""Adversaries that weigh what they see by its likelihood ratio."""
