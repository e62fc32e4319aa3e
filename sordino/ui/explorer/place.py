"""Where the runs are: one folder for the whole server, named when it is started, and the watch over it."""

from __future__ import annotations

from pathlib import Path

from sordino.ui.explorer.watching import Watch

watch = Watch(Path("runs"))


def choose(root: Path) -> None:
    """Watch another folder."""
    watch.root = root
