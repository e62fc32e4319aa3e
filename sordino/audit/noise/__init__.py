"""Tests of the noise itself: its law, its scale and its independence."""
