"""The uploads of a run, kept on disk where they were asked for: one file a round, whole or absent.

uploads/000012.safetensors    what the server had before it and received in round 12:
  model    (d,)       float32; the global model that the round began with
  uploads  (n, d)     float32, or float64 where the server adds noise; as they were delivered
  clients  (n,)       int64; who sent each. Absent behind a shuffler, where the server is not told
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.federation.storage import pack, unpack, write_whole, writing
from sordino.protocol import UserError

# What is done with the uploads of a round on their way to the server's sum: (round, model before it, clients, uploads) to the uploads.
Witness = Callable[[int, np.ndarray, np.ndarray, Iterable[np.ndarray]], Iterable[np.ndarray]]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptRound:
    """What the server saw of one round: the model before it, what arrived, and who sent it where the channel says so."""

    round: int
    model: np.ndarray
    uploads: np.ndarray
    clients: np.ndarray | None


def unwitnessed(
    round: int, model: np.ndarray, clients: np.ndarray, uploads: Iterable[np.ndarray]
) -> Iterable[np.ndarray]:
    """Pass uploads on and keep nothing."""
    return uploads


class UploadKeeper:
    """Writes the uploads of every so many rounds, and of the last, beside the run. Files are its only state.

    A round that is run again after an interruption writes its file again: the same bytes where the noise repeats.
    """

    def __init__(self, run: Path, *, rounds: int, every: int, named: bool) -> None:
        self._folder, self._rounds, self._every, self._named = run / "uploads", rounds, every, named

    def __call__(
        self, round: int, model: np.ndarray, clients: np.ndarray, uploads: Iterable[np.ndarray]
    ) -> Iterable[np.ndarray]:
        if not is_kept(round, self._rounds, self._every):
            return uploads
        arrived = list(uploads)
        table = np.stack(arrived) if arrived else np.empty((0, model.size), dtype=model.dtype)
        arrays = {
            "model": model,
            "uploads": table,
            **({"clients": clients.astype(np.int64)} if self._named else {}),
        }
        target = place_of(self._folder, round)
        with writing(target):
            self._folder.mkdir(exist_ok=True)
            write_whole(target, pack(arrays, {"round": round}))
        return arrived


def witness_of(run: Path, *, rounds: int, every: int, channel: str) -> Witness:
    """What a run does with its uploads: keep those of every so many rounds, or none where `every` is 0."""
    return (
        unwitnessed
        if every == 0
        else UploadKeeper(run, rounds=rounds, every=every, named=channel == "direct")
    )


def is_kept(round: int, rounds: int, every: int) -> bool:
    """Whether a round's uploads are kept: from the first on every so many, and the last one always; none for 0.

    Example:
        >>> [t for t in range(10) if is_kept(t, 10, 4)]
        [0, 4, 8, 9]
    """
    return every > 0 and (round % every == 0 or round + 1 == rounds)


def place_of(folder: Path, round: int) -> Path:
    """The file of a round."""
    return folder / f"{round:06d}.safetensors"


def kept_rounds(run: Path) -> list[int]:
    """The rounds whose uploads are kept with a run, in order."""
    return sorted(
        int(path.stem) for path in (run / "uploads").glob("*.safetensors") if path.stem.isdecimal()
    )


def read_round(run: Path, round: int) -> KeptRound:
    """The uploads of a round.

    Raises:
        UserError: they were not kept, or the file is damaged.
    """
    path = place_of(run / "uploads", round)
    try:
        arrays, _ = unpack(path.read_bytes())
        return KeptRound(
            round=round,
            model=arrays["model"],
            uploads=arrays["uploads"],
            clients=arrays.get("clients"),
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read ({error}). Train again with `sordino train --keep-uploads`."
        ) from None
