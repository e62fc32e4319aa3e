"""The documentation site: what of it is made from the code, so that it cannot drift from it. `make docs` builds it."""
