"""The explorer: three pages in a browser. What a page shows is computed by functions that know nothing of it; pages only draw."""
