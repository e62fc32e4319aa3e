"""Reads and writes the folder of a sweep.

sweep.json      the request, every setting with its calibrated noise, and all trials
runs/00000      a run folder for every trial
rows.json       the rows that are known so far
sweep.csv       all rows, once the sweep has ended; sweep.png and sweep.svg next to it

A sweep that is interrupted at any moment continues where it stopped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sordino.federation.store.files import write_whole, writing
from sordino.federation.store.run_folder import as_json
from sordino.protocol import Protocol, UserError, dumps, loads, loads_kept
from sordino.protocol.arithmetic import state_integers
from sordino.sweeps.sweep_request import SweepRequest, SweepSetting
from sordino.sweeps.sweep_results import SweepRow

PLAN = "sweep.json"
ROWS = "rows.json"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Names one training of a sweep.

    Attributes:
        setting: The number of its setting.
        seed: The seed of the training.
    """

    setting: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Holds a sweep with its noise calibrated and its trials drawn.

    Attributes:
        request: The request.
        settings: All combinations of values, each with its noise.
        trials: The trainings, in their order.
    """

    request: SweepRequest
    settings: tuple[SweepSetting, ...]
    trials: tuple[Trial, ...]


class SweepFolder:
    """Reads and writes the files of one sweep. Files are its only state.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def runs(self) -> Path:
        """The folder of all run folders."""
        return self.path / "runs"

    def refuse_another(self, request: SweepRequest) -> None:
        """Refuses a folder of another sweep, or of something else.

        Args:
            request: The present request.

        Raises:
            UserError: The folder holds something else; the message says what differs.
        """
        plan = self.path / PLAN
        if not plan.exists():
            # This command has just made the lock.
            kept = [entry.name for entry in self.path.iterdir() if entry.name != "lock"]
            if kept:
                raise UserError(
                    f"{self.path} is not empty, and no sweep: it holds {sorted(kept)[0]}. Choose "
                    "another folder with --out."
                )
            return
        before = self._read(plan)
        # By way of JSON, as in the file: tuples and infinities would differ otherwise.
        wanted = json.loads(as_json(request.as_document()))
        other = [name for name, value in wanted.items() if before.get(name) != value]
        if other:
            raise UserError(
                f"{self.path} holds another sweep: it differs in {', '.join(other)}. Choose "
                "another folder with --out, or repeat the command it was made with."
            )

    def discard_unstarted(self) -> None:
        """Removes the folder of a sweep that was refused before its first run began."""
        # A run that has begun has spent privacy, and what it wrote is kept.
        if self.runs.exists():
            return
        with suppress(OSError):
            (self.path / PLAN).unlink()
            (self.path / "lock").unlink()
            self.path.rmdir()

    def write_plan(self, plan: SweepPlan) -> None:
        """Writes down what will be trained, before anything is.

        Args:
            plan: The sweep.
        """
        document = {
            **plan.request.as_document(),
            "settings": [
                {"values": one.values, "protocol": dumps(state_integers(one.protocol))}
                for one in plan.settings
            ],
            "runs": [asdict(trial) for trial in plan.trials],
        }
        # An interrupted sweep continues with these trials. Drawing them again would be another
        # selection, whose price nobody has counted.
        with writing(self.path / PLAN):
            write_whole(self.path / PLAN, as_json(document))

    def read_plan(self) -> SweepPlan:
        """Returns the sweep that was begun in the folder.

        Raises:
            UserError: There is none, or its file is damaged.
        """
        found = self._read(self.path / PLAN)
        try:
            return SweepPlan(
                request=read_sweep_request(found),
                settings=tuple(
                    SweepSetting(values=one["values"], protocol=loads_kept(one["protocol"]))
                    for one in found["settings"]
                ),
                trials=tuple(Trial(**trial) for trial in found["runs"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path / PLAN} is damaged: {error}") from None

    def read_rows(self) -> dict[int, SweepRow]:
        """Returns the rows that are known, by the numbers of their trainings."""
        path = self.path / ROWS
        if not path.exists():
            return {}
        found = self._read(path)
        names = {field.name for field in fields(SweepRow)}
        try:
            rows = {int(number): row for number, row in found.items()}
            return {
                number: SweepRow(**{**row, "epsilon": read_spent_epsilon(row["epsilon"])})
                for number, row in rows.items()
                # A row that another version wrote is left out, and made again from its run.
                if set(row) == names
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}. Remove it; the runs stay.") from None

    def write_rows(self, rows: dict[int, SweepRow]) -> None:
        """Writes all rows that are known.

        Args:
            rows: The rows by the numbers of their trainings.
        """
        document = {str(number): asdict(rows[number]) for number in sorted(rows)}
        with writing(self.path / ROWS):
            write_whole(self.path / ROWS, as_json(document))

    def _read(self, path: Path) -> dict[str, Any]:
        """Returns a JSON file of the folder."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{self.path} holds no sweep: there is no {path.name}.") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}") from None
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged: it is not a table.")
        return found


def read_sweep_request(document: dict[str, Any]) -> SweepRequest:
    """Returns the request that sweep.json holds.

    Args:
        document: The content of the file.
    """
    protocol: Protocol = loads(document["protocol"])
    return SweepRequest(
        protocol=protocol,
        over=tuple((key, tuple(values)) for key, values in document["over"].items()),
        epsilons=tuple(document["epsilons"]),
        view=document["view"],
        delta=document["delta"],
        seeds=document["seeds"],
        price=document["price"],
        trials=document["trials"],
    )


def read_spent_epsilon(value: Any) -> float | None:
    """Returns an epsilon of a JSON file, where infinity is a text.

    Args:
        value: A number, "inf" or None.
    """
    return None if value is None else float(value)
