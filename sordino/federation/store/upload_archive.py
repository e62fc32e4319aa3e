"""The uploads of a run, kept on disk where they were asked for: one file a round, whole or absent.

uploads/000012.safetensors    what the server had before round 12, and received in it:
  model    (d,)       float32; the global model that the round began with
  uploads  (n, d)     float32, or float64 where the server adds noise; as they were delivered
  clients  (n,)       int64; who sent each. Absent behind a shuffler, where the server does not know

Under secure aggregation the server has no uploads. In their place:
  sum      (d,)       uint32 or uint64; the sum of all uploads, as residues. Absent if not opened
  clients  (n,)       int64; who contributed to it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.federation.round import RoundRecord
from sordino.federation.store.files import pack, unpack, write_whole, writing
from sordino.federation.training_stores import NoArchive, RecordArchive
from sordino.protocol import Channel, UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class ArchivedRound:
    """What the server saw of one round.

    Attributes:
        round: Its number.
        model: The global model before it.
        uploads: What arrived, one upload a row; none under secure aggregation.
        clients: Who sent each, None behind a shuffler; under secure aggregation who contributed.
        total: Under secure aggregation the sum of all uploads, as residues, where it was opened.
    """

    round: int
    model: np.ndarray
    uploads: np.ndarray
    clients: np.ndarray | None
    total: np.ndarray | None = None


class UploadArchive:
    """Writes the uploads of some rounds and of the last to the run's folder. Files are its state.

    A round that is run again after an interruption writes its file again: the same bytes where the
    noise repeats.
    """

    def __init__(
        self,
        run: Path,
        *,
        rounds: int,
        every: int,
        channel: Channel,
    ) -> None:
        """Decides what to keep.

        Args:
            run: The folder of the run.
            rounds: How many rounds it has.
            every: Rounds between two that are kept.
            channel: How uploads reach the server.
        """
        self._folder = run / "uploads"
        self._rounds = rounds
        self._every = every
        self._channel = channel

    def wants(self, round_index: int) -> bool:
        """Returns whether the uploads of a round are kept.

        Args:
            round_index: Number of the round, from 0.
        """
        return is_kept(round_index, self._rounds, self._every)

    def store(self, record: RoundRecord) -> None:
        """Writes the uploads of an observed round.

        Args:
            record: The round as it was played.
        """
        model = record.before.weights
        arrays = {"model": model, "uploads": np.empty((0, model.size), dtype=model.dtype)}
        if record.delivered and self._channel.sums_only:
            arrays["sum"] = record.delivered[0]
        elif record.delivered:
            arrays["uploads"] = np.stack(record.delivered)
        # Who contributes to a secure sum is no secret, and whose upload is which is none either
        # where they come with names.
        if self._channel.names_senders or self._channel.sums_only:
            arrays["clients"] = record.present.astype(np.int64)
        target = archive_path(self._folder, record.task.round_index)
        with writing(target):
            self._folder.mkdir(exist_ok=True)
            write_whole(target, pack(arrays, {"round": record.task.round_index}))


def open_archive(
    run: Path,
    *,
    rounds: int,
    every: int,
    channel: Channel,
) -> RecordArchive:
    """Returns what a run does with its uploads.

    Args:
        run: The folder of the run.
        rounds: How many rounds it has.
        every: Rounds between two whose uploads are kept; 0 for none.
        channel: How uploads reach the server.
    """
    if every == 0:
        return NoArchive()
    return UploadArchive(run, rounds=rounds, every=every, channel=channel)


def is_kept(round_index: int, rounds: int, every: int) -> bool:
    """Returns whether a round's uploads are kept: at regular intervals, and those of the last.

    Args:
        round_index: Number of the round, from 0.
        rounds: How many there are.
        every: Rounds between two that are kept; 0 for none.

    Example:
        >>> [t for t in range(10) if is_kept(t, 10, 4)]
        [0, 4, 8, 9]
    """
    return every > 0 and (round_index % every == 0 or round_index + 1 == rounds)


def archive_path(folder: Path, round_index: int) -> Path:
    """Returns the file of a round.

    Args:
        folder: The folder.
        round_index: Number of the round, from 0.
    """
    return folder / f"{round_index:06d}.safetensors"


def kept_rounds(run: Path) -> list[int]:
    """Returns the rounds whose uploads are kept with a run, in order.

    Args:
        run: The run folder.
    """
    files = (run / "uploads").glob("*.safetensors")
    return sorted(int(path.stem) for path in files if path.stem.isdecimal())


def read_round(run: Path, round_index: int) -> ArchivedRound:
    """Reads the uploads of a round.

    Args:
        run: The folder of the run.
        round_index: Number of the round, from 0.

    Raises:
        UserError: They were not kept, or the file is damaged.
    """
    path = archive_path(run / "uploads", round_index)
    try:
        arrays, _ = unpack(path.read_bytes())
        return ArchivedRound(
            round=round_index,
            model=arrays["model"],
            uploads=arrays["uploads"],
            clients=arrays.get("clients"),
            total=arrays.get("sum"),
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read ({error}). Train again with `sordino train --keep-uploads`."
        ) from None
