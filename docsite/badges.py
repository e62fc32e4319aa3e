"""The badges of the README, from pyproject.toml: `python -m docsite.badges` draws them anew. Nothing is loaded from elsewhere."""

from __future__ import annotations

import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "docs" / "badges"
# Of letters at 11 pixels, on average; the text is stretched to the width that is reserved for it.
LETTER = 6.4
TEXT = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
<title>{name}: {value}</title>
<rect width="{width}" height="20" rx="3" fill="#45474d"/>
<path d="M{left} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{rest}z" fill="#0b5c8f"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="7" y="14" textLength="{name_length}">{name}</text>
<text x="{value_start}" y="14" textLength="{value_length}">{value}</text>
</g>
</svg>
"""


def list_badges() -> dict[str, tuple[str, str]]:
    """Returns what each badge says: its file, its name and its value."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    typed = any(line.startswith("Typing ::") for line in project["classifiers"])
    return {
        "licence": ("licence", project["license"]),
        "python": ("Python", project["requires-python"]),
        "types": ("types", "mypy --strict" if typed else "none"),
        "version": ("version", project["version"]),
    }


def draw_badge(name: str, value: str) -> str:
    """Returns a badge as an SVG that stands alone.

    Args:
        name: What it is about.
        value: What it says.
    """
    name_length, value_length = (round(LETTER * len(text)) for text in (name, value))
    left = name_length + 14
    return TEXT.format(
        name=escape(name),
        value=escape(value),
        name_length=name_length,
        value_length=value_length,
        left=left,
        rest=value_length + 11,
        value_start=left + 7,
        width=left + value_length + 14,
    )


def main(folder: Path = FOLDER) -> None:
    """Draws all badges.

    Args:
        folder: Where to.
    """
    folder.mkdir(exist_ok=True)
    for file, (name, value) in list_badges().items():
        (folder / f"{file}.svg").write_text(draw_badge(name, value), encoding="utf-8")


if __name__ == "__main__":
    main()
