"""Keeps what only the owner of a run can say about it: owner, purpose and names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sordino.federation.store.files import write_whole, writing
from sordino.federation.store.run_folder import as_json
from sordino.protocol import InvalidValue, UserError

ABOUT = "about.json"
# Longer texts belong in the annex.
MOST_LETTERS = 500


@dataclass(frozen=True, kw_only=True)
class About:
    """Holds what the owner says about a run; a text is empty where nothing was said.

    Attributes:
        owner: The person or institution that is responsible for the run.
        purpose: The purpose of the model.
        names: The people who prepared and reviewed the report.
    """

    owner: str = ""
    purpose: str = ""
    names: str = ""

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not isinstance(text, str) or len(text) > MOST_LETTERS or not text_is_plain(text):
                raise InvalidValue(name, text, f"one line of at most {MOST_LETTERS} letters")

    def rows(self) -> list[tuple[str, str]]:
        """Returns the texts that are not empty, each with a word that says what it is."""
        said = {"Owner": self.owner, "Purpose": self.purpose, "Prepared by": self.names}
        return [(word, text) for word, text in said.items() if text]


def text_is_plain(text: str) -> bool:
    """Returns whether a text is one line without control characters.

    Args:
        text: Any text.
    """
    return not text or text.isprintable()


def read_about(folder: Path) -> About:
    """Returns what was said about a run.

    Args:
        folder: The run's folder.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / ABOUT
    if not path.exists():
        return About()
    try:
        return About(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"{path} cannot be read: expected owner, purpose and names. "
            "Delete it, and say them again with `sordino report`."
        ) from None


def keep_about(folder: Path, **said: str | None) -> About:
    """Writes down what the owner says about a run, in addition to what was said before.

    Args:
        folder: The run's folder.
        **said: Attributes of `About`; None leaves an attribute unchanged.

    Returns:
        Everything that the owner has said.

    Raises:
        InvalidValue: A text is too long, or not one line.
    """
    new = {name: text for name, text in said.items() if text is not None}
    about = read_about(folder)
    if new:
        about = replace(about, **new)
        with writing(folder / ABOUT):
            write_whole(folder / ABOUT, as_json(asdict(about)))
    return about
