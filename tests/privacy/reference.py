"""Reference values of the theory, computed independently of this project, as they are committed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "vectors"


def reference_vectors() -> list[dict[str, Any]]:
    """Returns every reference value: its formula, its arguments and what it must come to."""
    found: list[dict[str, Any]] = []
    for file in sorted(FOLDER.glob("*.json")):
        found.extend(json.loads(file.read_text())["vectors"])
    return found
