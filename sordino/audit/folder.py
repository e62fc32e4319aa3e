"""The folder of an audit on disk. Killed at any moment, it is taken up again, and no training counts twice.

audit.json                  what is audited: everything that the game follows from, and how it stands
protocol.toml               the protocol
scores/choosing-0-....      scores of a chunk of trainings, whole or absent: which half, which side, which place
result.json                 the finding, as `--json` prints it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.audit.bounds import Scores
from sordino.audit.game import Chunk, Played
from sordino.federation.folder import as_json
from sordino.federation.storage import pack, unpack, write_whole, writing
from sordino.protocol import Protocol, UserError, dumps, loads
from sordino.protocol.errors import typed

FACTS = {
    "canary",
    "view",
    "unit",
    "trainings",
    "delta",
    "seed",
    "rounds",
    "sizes",
    "run",
    "claims",
    "digest",
    "generator",
}


class AuditFolder:
    """Reads and writes the files of one audit. Files are its only state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, protocol: Protocol, facts: dict[str, Any]) -> AuditFolder:
        """Fill the empty folder of a new audit; one that holds anything already is refused."""
        cls.refuse_used(path)
        with writing(path):
            (path / "scores").mkdir()
            write_whole(path / "protocol.toml", dumps(protocol).encode())
            write_whole(path / "audit.json", as_json(facts))  # last: a folder with it is complete
        return cls(path)

    @classmethod
    def refuse_used(cls, path: Path) -> None:
        """A folder that holds anything already is not for a new audit."""
        if any(entry.name != "lock" for entry in path.iterdir()):
            advice = f"go on with `{typed('resume', path)}`" if cls.is_one(path) else "or empty it"
            raise UserError(f"{path} is not empty. Choose another folder with --out, {advice}.")

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether there is an audit in this folder."""
        return (path / "audit.json").exists()

    def protocol(self) -> Protocol:
        """The protocol that is audited."""
        try:
            return loads((self.path / "protocol.toml").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / 'protocol.toml'} cannot be read: {error}.") from None

    def facts(self) -> dict[str, Any]:
        """What audit.json says."""
        try:
            facts = dict(json.loads((self.path / "audit.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            facts = {}
        if not facts.keys() >= FACTS:
            raise UserError(f"{self.path / 'audit.json'} cannot be read: the audit is damaged.")
        return facts

    def keep(self, played: Played) -> None:
        """Write the scores of a chunk."""
        seen = {"scores": played.scores, "residuals": played.residuals, "strays": played.strays}
        arrays = {name: array for name, array in seen.items() if array is not None}
        target = self.path / "scores" / played.chunk.name
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            write_whole(target, pack(arrays, {}))

    def missing(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks that are still to be played; one whose file is damaged is played again."""
        return [chunk for chunk in chunks if self._read(chunk) is None]

    def _read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        try:
            arrays, _ = unpack((self.path / "scores" / chunk.name).read_bytes())
        except (OSError, ValueError):
            return None
        return arrays if len(arrays.get("scores", ())) == len(chunk.trainings) else None

    def scores(
        self, chunks: Sequence[Chunk]
    ) -> tuple[Scores, np.ndarray | None, np.ndarray | None]:
        """All scores by half and side, the noise that was kept, and what strayed from it."""
        sides: dict[tuple[int, int], list[np.ndarray]] = {
            (half, side): [] for half in (0, 1) for side in (0, 1)
        }
        noise, strays = [], []
        for chunk in chunks:
            arrays = self._read(chunk)
            if arrays is None:
                raise UserError(
                    f"{self.path / 'scores' / chunk.name} is missing or damaged. Go on with `{typed('resume', self.path)}`."
                )
            sides[chunk.half, chunk.side].append(arrays["scores"])
            noise += [arrays["residuals"]] if "residuals" in arrays else []
            strays += [arrays["strays"]] if "strays" in arrays else []
        joined = {place: np.concatenate(parts) for place, parts in sides.items()}
        scores = Scores(choosing=(joined[0, 0], joined[0, 1]), judging=(joined[1, 0], joined[1, 1]))
        return (
            scores,
            np.concatenate(noise) if noise else None,
            np.max(strays, axis=0) if strays else None,
        )

    def close(self, result: dict[str, Any]) -> None:
        """Write the finding; the folder is then over."""
        with writing(self.path / "result.json"):
            write_whole(self.path / "result.json", as_json(result))
