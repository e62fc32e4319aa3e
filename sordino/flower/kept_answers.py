"""Keeps a client's last uploads: what was sent once is sent again, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.store.files import arrays_digest, pack, unpack, write_whole, writing
from sordino.protocol import UserError

# Uploads that are kept: a server may resume from its checkpoint before the last.
KEPT_ANSWERS = 2
VECTOR = "vector"
# Before the names of what the client keeps after an upload.
KEPT = "kept/"


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Holds an upload that was computed.

    Attributes:
        round: Number of the round, from 0.
        request: Digest of the request that it answers.
        run: The run on Flower in which it was requested.
        attempt: How often it had been requested before in that run.
        vector: The upload.
        kept: What the client keeps after it.
        sum_attempt: The attempt at the round's secure sum; None for an upload without masks.
    """

    round: int
    request: str
    run: str
    attempt: int
    vector: np.ndarray
    kept: Mapping[str, np.ndarray]
    sum_attempt: int | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the upload."""
        return arrays_digest({VECTOR: self.vector})


class KeptAnswers:
    """Reads and writes the uploads in a folder, one file for each round."""

    def __init__(self, folder: Path) -> None:
        """Opens the folder.

        Args:
            folder: The folder.
        """
        self._folder = folder

    @property
    def rounds(self) -> list[int]:
        """The rounds whose uploads are kept."""
        names = [path.stem for path in self._folder.glob("*.safetensors")]
        # Programs that copy or synchronise folders leave files such as "0 (copy)".
        return [int(name) for name in names if name.isascii() and name.isdecimal()]

    def write(self, answer: Answer) -> None:
        """Writes an upload, whole or not at all.

        Args:
            answer: The upload.
        """
        facts: dict[str, Any] = {
            "round": answer.round,
            "request": answer.request,
            "run": answer.run,
            "attempt": answer.attempt,
            "sum_attempt": answer.sum_attempt,
        }
        arrays = {VECTOR: answer.vector}
        for name, array in answer.kept.items():
            arrays[KEPT + name] = array
        path = self._name_file(answer.round)
        with writing(path):
            write_whole(path, pack(arrays, facts))

    def read(self, round_index: int) -> Answer:
        """Returns the upload of a round.

        Args:
            round_index: Number of the round, from 0.

        Raises:
            UserError: Its file is damaged.
        """
        path = self._name_file(round_index)
        try:
            arrays, facts = unpack(path.read_bytes())
            vector = arrays.pop(VECTOR)
            kept = {name.removeprefix(KEPT): array for name, array in arrays.items()}
            return Answer(**facts, vector=vector, kept=kept)
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{path} is damaged. Put it back; without it this client answers nothing."
            ) from None

    def forget_older(self, newest: int) -> None:
        """Removes uploads that are not asked for any more.

        Args:
            newest: The round that was kept last. It is an early one where a sum is tried again.
        """
        others = sorted(set(self.rounds) - {newest}, reverse=True)
        for old in others[KEPT_ANSWERS - 1 :]:
            self._name_file(old).unlink()

    def _name_file(self, round_index: int) -> Path:
        return self._folder / f"{round_index}.safetensors"
