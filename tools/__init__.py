"""Commands for people who work on Sordino."""
