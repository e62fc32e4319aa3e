"""`python -m sordino`."""

from sordino.cli import main

main()
