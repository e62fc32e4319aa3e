"""What MkDocs calls while it builds the site: the pages that are written from the code join those of docs/."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docsite import command_line, file_format, interface

PAGES = {
    "reference/commands.md": command_line.page,
    "reference/file.md": file_format.page,
    "reference/python.md": interface.page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the written pages."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
