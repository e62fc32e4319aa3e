"""A Sordino federation as a Flower app."""
