"""Adds the page that is generated from docstrings while MkDocs builds the site."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docsite import interface

PAGES = {"reference/python.md": interface.page}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated page to those of docs/.

    Args:
        files: that MkDocs has found.
        config: of the site.
    """
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
