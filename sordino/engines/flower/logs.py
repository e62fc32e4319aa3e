"""Keeps what long-running processes say: a JSON object a line, in files that are replaced in time."""

from __future__ import annotations

import datetime
import json
import re
import threading
from collections.abc import Iterable
from logging import INFO, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path

LARGEST = 5_000_000  # bytes of a file
KEPT = 5  # files beside the one that is written
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*")


class Log:
    """Writes lines of several processes to one file that is replaced when it is large."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = RotatingFileHandler(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")

    def write(self, source: str, line: str) -> None:
        """Writes one line that a process said."""
        said = COLOURS.sub("", line).rstrip()
        level = LEVEL.match(said)
        words = said[level.end() :] if level else said
        if not words:
            return
        facts = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "from": source,
            "level": level[1].lower() if level else "info",
            "said": words,
        }
        text = json.dumps(facts)
        self._file.handle(LogRecord("sordino", INFO, "", 0, text, None, None))

    def follow(self, source: str, lines: Iterable[bytes]) -> None:
        """Writes all lines of a process, in a thread, until there are no more."""

        def work() -> None:
            for line in lines:
                self.write(source, line.decode(errors="replace"))

        threading.Thread(target=work, daemon=True).start()
