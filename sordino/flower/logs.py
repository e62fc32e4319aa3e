"""Keeps the output of long-running processes as JSON lines, in files that are rotated."""

from __future__ import annotations

import datetime
import json
import re
import threading
from collections.abc import Iterable
from logging import INFO, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path

# Bytes after which a file is put aside.
LARGEST = 5_000_000
# Files that are kept in addition to the one being written.
KEPT = 5
# Escape sequences that colour words on a terminal.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# How Flower and uvicorn begin a line.
LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*")


class JsonLog:
    """Writes the lines of several processes to one file, which is rotated when it is large."""

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Args:
            path: The file; its folder is created.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")

    def write(self, source: str, line: str) -> None:
        """Writes one line.

        Args:
            source: Name of the process that printed it.
            line: The line.
        """
        words = COLOURS.sub("", line).rstrip()
        level = "info"
        prefix = LEVEL.match(words)
        if prefix is not None:
            level = prefix[1].lower()
            words = words[prefix.end() :]
        if not words:
            return
        facts = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "from": source,
            "level": level,
            "said": words,
        }
        record = LogRecord("sordino", INFO, "", 0, json.dumps(facts), None, None)
        self._file.handle(record)

    def follow(self, source: str, lines: Iterable[bytes]) -> None:
        """Writes all lines of a process, in a thread, until there are no more.

        Args:
            source: Name of the process.
            lines: Its output.
        """

        def copy_lines() -> None:
            for line in lines:
                self.write(source, line.decode(errors="replace"))

        threading.Thread(target=copy_lines, daemon=True).start()
