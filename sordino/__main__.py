"""`python -m sordino`."""

from sordino.cli.main import main

main()
