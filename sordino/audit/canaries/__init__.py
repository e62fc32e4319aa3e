"""Audits by one training, with many canary records or some canary clients."""
