"""Reads and writes the folder of an audit.

audit.json                  what is audited and how: the game follows from it
protocol.toml               the protocol
plan.json                   how many trainings are planned, in an audit with a time limit
scores/choosing-0-....      the scores of a chunk, named by half, side and start; whole or absent
result.json                 the finding, as `--json` prints it

An audit can be interrupted at any moment and continued, and no training counts twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.audit.game import Chunk, ChunkScores
from sordino.audit.lower_bounds import Scores
from sordino.federation.store.files import pack, unpack, write_whole, writing
from sordino.federation.store.run_folder import as_json
from sordino.protocol import Protocol, UserError, dumps, loads_kept
from sordino.protocol.arithmetic import state_integers
from sordino.protocol.errors import format_command

# The keys of audit.json. Later versions may write more, never fewer.
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
# The keys of plan.json.
PLANNED = {"choosing", "judging", "step"}


class AuditFolder:
    """The files of one audit, which are its only state.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, protocol: Protocol, facts: dict[str, Any]) -> AuditFolder:
        """Fills the empty folder of a new audit.

        Args:
            path: The folder.
            protocol: The protocol that is audited.
            facts: The contents of audit.json.

        Raises:
            UserError: The folder is not empty.
        """
        cls.refuse_used(path)
        with writing(path):
            (path / "scores").mkdir()
            write_whole(path / "protocol.toml", dumps(state_integers(protocol)).encode())
            # Written last: a folder that has it is complete.
            write_whole(path / "audit.json", as_json(facts))
        return cls(path)

    @classmethod
    def refuse_used(cls, path: Path) -> None:
        """Refuses a folder that is not empty.

        Args:
            path: The folder.

        Raises:
            UserError: It holds something.
        """
        # The lock of this very audit is there already.
        if all(entry.name == "lock" for entry in path.iterdir()):
            return
        advice = "or empty it"
        if cls.holds_audit(path):
            advice = f"or go on with `{format_command('resume', path)}`"
        raise UserError(f"{path} is not empty. Choose another folder with --out, {advice}.")

    @classmethod
    def holds_audit(cls, path: Path) -> bool:
        """Returns whether there is an audit in a folder.

        Args:
            path: The folder.
        """
        return (path / "audit.json").exists()

    def protocol(self) -> Protocol:
        """Returns the protocol that is audited.

        Raises:
            UserError: The file cannot be read.
        """
        try:
            return loads_kept((self.path / "protocol.toml").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / 'protocol.toml'} cannot be read: {error}.") from None

    def facts(self) -> dict[str, Any]:
        """Returns the contents of audit.json.

        Raises:
            UserError: The file is missing or damaged.
        """
        try:
            facts = dict(json.loads((self.path / "audit.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            facts = {}
        if not facts.keys() >= FACTS:
            raise UserError(f"{self.path / 'audit.json'} cannot be read: the audit is damaged.")
        return facts

    def plan(self) -> dict[str, int] | None:
        """Returns how many trainings an audit with a time limit plans; None before it has a plan.

        Raises:
            UserError: The file is damaged.
        """
        source = self.path / "plan.json"
        if not source.exists():
            return None
        try:
            plan = dict(json.loads(source.read_bytes()))
        except (OSError, ValueError, TypeError):
            plan = {}
        counts = [type(number) is int and number > 0 for number in plan.values()]
        if plan.keys() != PLANNED or not all(counts):
            raise UserError(f"{source} cannot be read: the audit is damaged.")
        return plan

    def keep_plan(self, plan: dict[str, int]) -> None:
        """Writes how many trainings an audit with a time limit plans.

        Args:
            plan: The numbers, under the keys of `PLANNED`.
        """
        with writing(self.path / "plan.json"):
            write_whole(self.path / "plan.json", as_json(plan))

    def keep_scores(self, played: ChunkScores) -> None:
        """Writes the scores of a chunk.

        Args:
            played: The chunk, with its scores.
        """
        arrays = {"scores": played.scores}
        if played.residuals is not None:
            arrays["residuals"] = played.residuals
        if played.strays is not None:
            arrays["strays"] = played.strays
        # Each chunk has its own file, so a killed audit keeps what it has played, once.
        target = self.path / "scores" / played.chunk.name
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            write_whole(target, pack(arrays, {}))

    def list_missing(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Returns the chunks that are still to be played, those with a damaged file included.

        Args:
            chunks: All chunks of the game.
        """
        return [chunk for chunk in chunks if self._read(chunk) is None]

    def _read(self, chunk: Chunk) -> dict[str, np.ndarray] | None:
        try:
            arrays, _ = unpack((self.path / "scores" / chunk.name).read_bytes())
        except (OSError, ValueError):
            return None
        # A file with another number of trainings does not belong to this audit.
        if len(arrays.get("scores", ())) != len(chunk.trainings):
            return None
        return arrays

    def read_scores(
        self, chunks: Sequence[Chunk]
    ) -> tuple[Scores, np.ndarray | None, np.ndarray | None]:
        """Returns all scores, and what was kept of the noise.

        Args:
            chunks: All chunks of the game.

        Returns:
            The scores by half and side; the noise; and how far released values are from those that
            follow from noisy ones (`Replay.strays`).

        Raises:
            UserError: A file is missing or damaged.
        """
        sides: dict[tuple[int, int], list[np.ndarray]] = {}
        noise = []
        strays = []
        for chunk in chunks:
            arrays = self._read(chunk)
            if arrays is None:
                raise UserError(
                    f"{self.path / 'scores' / chunk.name} is missing or damaged. "
                    f"Go on with `{format_command('resume', self.path)}`."
                )
            sides.setdefault((chunk.half, chunk.side), []).append(arrays["scores"])
            if "residuals" in arrays:
                noise.append(arrays["residuals"])
            if "strays" in arrays:
                strays.append(arrays["strays"])
        joined = {place: np.concatenate(parts) for place, parts in sides.items()}
        # One half chooses the test and the other judges it, so that the choice costs no confidence.
        scores = Scores(
            choosing=(joined[0, 0], joined[0, 1]),
            judging=(joined[1, 0], joined[1, 1]),
        )
        all_noise = np.concatenate(noise) if noise else None
        all_strays = np.max(strays, axis=0) if strays else None
        return scores, all_noise, all_strays

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes the finding, which ends the audit.

        Args:
            result: The finding as a JSON document.
        """
        with writing(self.path / "result.json"):
            write_whole(self.path / "result.json", as_json(result))
