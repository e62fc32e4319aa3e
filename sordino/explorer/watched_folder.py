"""Holds the folder of runs, one for the whole server, and what watches it."""

from __future__ import annotations

from pathlib import Path

from sordino.explorer.watching import RunWatcher

watcher = RunWatcher(Path("runs"))


def watch_folder(root: Path) -> None:
    """Watches another folder.

    Args:
        root: The folder of runs.
    """
    watcher.root = root
