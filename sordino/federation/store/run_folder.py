"""Reads and writes the folder of a run, so that a crash at any moment loses nothing that counts.

protocol.toml       the protocol, resolved and complete
run.json            facts about the run: engine, versions, kind of noise, how it ended
ledger.jsonl        what was spent; a round's line is on disk before its uploads are used
metrics.jsonl       one line per round, null where a value would tell more than the promise
                    covers (privacy/published.py)
private/            where such values were left out: the whole lines, in metrics.jsonl; not to
                    be published
checkpoint          the state after a round, whole or absent; checkpoint.previous is the one
                    before
partition.json      how many records of each label every client has; from private data,
                    covered by no guarantee
model.safetensors   the final model
uploads/            with --keep-uploads: what the server received, a file a round
                    (upload_archive.py)
clients/            where clients keep models: ID.safetensors is client ID's, which nobody
                    else is given
signatures/         the keys that vouch for the run (signatures.py)
audits/, attacks/   what audits and attacks of the run have found
about.json          owner, purpose and names, where somebody said them (report/about.py)
report.html         all of it that may be published, for people
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import LabelShares
from sordino.federation.state import State
from sordino.federation.store.files import pack, unpack, write_whole, writing
from sordino.privacy.ledger import Ledger, read_ledger
from sordino.privacy.ledger_lines import Opened
from sordino.privacy.published import Withheld, find_withheld, publish_row
from sordino.protocol import Protocol, UserError, dumps, loads
from sordino.protocol.arithmetic import read_as_kept
from sordino.protocol.documents import to_json_value
from sordino.protocol.errors import Changed, format_command

# Entries of every run.json, which may have more.
FACTS = {
    "status": str,
    "sizes": list,
    "engine": str,
    "noise": str,
    "parameters": int,
    "workers": int,
}
# The part of a run folder that is left out of what is published.
PRIVATE = "private"
DO_NOT_PUBLISH = (
    "Do not publish this folder.\n"
    "\n"
    "{reasons}\n"
    "metrics.jsonl here has the whole lines of all rounds. The one in the folder above has what "
    "may be passed on, as has report.html.\n"
    "Of the folder above, these are no less private: ledger.jsonl (who took part), checkpoint and "
    "checkpoint.previous (models of earlier\n"
    "rounds), run.json (a digest of the records), partition.json, clients/ and uploads/.\n"
)


def refuse_filled(path: Path) -> None:
    """Refuses a folder that holds anything but a lock: it belongs to somebody else.

    Args:
        path: The folder.

    Raises:
        UserError: It is not empty.
    """
    if any(entry.name != "lock" for entry in path.iterdir()):
        advice = "or empty it"
        if (path / "protocol.toml").exists():
            advice = f"or go on with `{format_command('resume', path)}`"
        raise UserError(f"{path} is not empty. Choose another folder with --out, {advice}.")


class Facts(dict[str, Any]):
    """Holds what a run.json says; asked for an entry that is not in it, it says so."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"{self._path} is damaged: it has no entry {name!r}. Put back a copy of it."
        )


class RunFolder:
    """Reads and writes the files of one run. It holds the open ledger while a run is under way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        protocol: Protocol,
        facts: Mapping[str, Any],
        opened: Opened,
        shares: LabelShares | None = None,
    ) -> RunFolder:
        """Fills the empty folder of a new run; one that holds anything already is refused.

        Args:
            path: The folder.
            protocol: The protocol, resolved and complete.
            facts: What run.json says.
            opened: The first line of the ledger.
            shares: Which client has which labels, where it is known.

        Returns:
            The folder.

        Raises:
            UserError: The folder is not empty, or cannot be written.
        """
        refuse_filled(path)
        folder = cls(path)
        with writing(path):
            write_whole(path / "run.json", as_json(dict(facts)))
            Ledger.create(path / "ledger.jsonl", opened).close()
            write_whole(path / "metrics.jsonl", b"")
            withheld = find_withheld(protocol)
            if withheld:
                text = DO_NOT_PUBLISH.format(reasons="\n".join(withheld.reasons))
                (path / PRIVATE).mkdir()
                write_whole(path / PRIVATE / "README.txt", text.encode())
                write_whole(path / PRIVATE / "metrics.jsonl", b"")
            if shares is not None:
                # Before the run is complete: the ledger's first line has sealed it.
                folder.keep_shares(shares)
            # Last of all: a folder with protocol.toml is a complete run, one without it is none.
            write_whole(path / "protocol.toml", dumps(protocol).encode())
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """Returns the folder of a run that was started earlier.

        Args:
            path: The folder.

        Raises:
            UserError: There is no run in it.
        """
        if not (path / "protocol.toml").is_file():
            raise UserError(
                f"there is no run in {str(path)!r}: a run is a folder with protocol.toml, "
                "ledger.jsonl and checkpoint."
            )
        return cls(path)

    @property
    def ledger_path(self) -> Path:
        """Where the ledger is."""
        return self.path / "ledger.jsonl"

    def protocol(self) -> Protocol:
        """Returns the protocol of the run, held against the digest that its ledger was opened with.

        Raises:
            Changed: It is not the protocol that the run was started with.
            UserError: It cannot be read.
        """
        path = self.path / "protocol.toml"
        try:
            text = path.read_text(encoding="utf-8")
            protocol = loads(text)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
        except UserError as error:
            raise UserError(f"{path} is damaged: {error}") from None
        opened = read_ledger(self.ledger_path).events[0]
        # The bytes of the file, or what it says: a later version may write the same protocol with
        # more keys.
        digests = (hashlib.sha256(text.encode()).hexdigest(), protocol_digest(protocol))
        if not isinstance(opened, Opened) or opened.protocol not in digests:
            raise Changed(
                f"{path} was changed after the run was started. Put it back, or start a new run "
                "from it."
            )
        return read_as_kept(protocol)

    def facts(self) -> dict[str, Any]:
        """Returns what run.json says.

        Raises:
            UserError: It cannot be read.
        """
        try:
            facts = Facts(self.path / "run.json", json.loads((self.path / "run.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            facts = Facts(self.path / "run.json", {})
        if not all(isinstance(facts.get(name), kind) for name, kind in FACTS.items()):
            raise UserError(f"{self.path / 'run.json'} cannot be read: the run is damaged.")
        return facts

    def keep_shares(self, shares: LabelShares) -> None:
        """Writes down which client has which labels.

        Args:
            shares: How many records of each label every client has.
        """
        path = self.path / "partition.json"
        with writing(path):
            classes = None if shares.classes is None else list(shares.classes)
            write_whole(path, as_line({"classes": classes, "counts": shares.counts.tolist()}))

    def shares(self) -> LabelShares | None:
        """Returns which client has which labels; None where it was not written down.

        Raises:
            UserError: The file is damaged.
        """
        path = self.path / "partition.json"
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            counts = np.array(document["counts"], dtype=np.int64)
            classes = document["classes"]
            names = None
            if classes is not None:
                names = tuple(str(name) for name in classes)
            shares = LabelShares(counts=counts, classes=names)
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            raise UserError(f"{path} cannot be read: the run is damaged.") from None
        # A regression has no labels: one column counts all records.
        columns = 1 if names is None else len(names)
        if counts.ndim != 2 or counts.min(initial=0) < 0 or counts.shape[1] != columns:
            raise UserError(
                f"{path} is damaged: it does not have one row for each client and one column for "
                "each label."
            )
        return shares

    def note(self, **facts: Any) -> None:
        """Changes facts in run.json.

        Args:
            facts: The entries that are new or have changed.
        """
        with writing(self.path / "run.json"):
            write_whole(self.path / "run.json", as_json({**self.facts(), **facts}))

    def save_checkpoint(self, state: State) -> None:
        """Keeps the state, and the checkpoint before it as a second line of defence.

        Args:
            state: The state after a round.
        """
        target = self.path / "checkpoint"
        with writing(target):
            content = pack(state.arrays(), {"round": state.round})
            # The old one is copied before it is replaced: at every moment one of the two is whole.
            if target.exists():
                write_whole(self.path / "checkpoint.previous", target.read_bytes())
            write_whole(target, content)

    def load_checkpoint(self) -> tuple[State | None, str]:
        """Returns the newest state that is whole, and a word if the newest one was damaged.

        Returns:
            The state, None if none was written yet; and the word, empty if there is nothing to say.

        Raises:
            UserError: There are checkpoints, and all are damaged.
        """
        damage = []
        for name in ("checkpoint", "checkpoint.previous"):
            path = self.path / name
            if not path.exists():
                continue
            try:
                arrays, facts = unpack(path.read_bytes())
                state = State.of(arrays, int(facts["round"]))
            except (OSError, ValueError, KeyError) as error:
                damage.append(f"{path} is damaged ({error})")
                continue
            if not damage:
                return state, ""
            return state, f"{damage[0]}; going on from the one before it, round {state.round}."
        if damage:
            raise UserError(
                "; ".join(damage)
                + ". Nothing was changed. Put back a copy of a checkpoint, or start a new run."
            )
        return None, ""

    @cached_property
    def withheld(self) -> Withheld:
        """The values left out of metrics.jsonl; nothing in folders that keep no lines apart."""
        return find_withheld(self.protocol()) if self._private.exists() else Withheld()

    @property
    def _private(self) -> Path:
        return self.path / PRIVATE / "metrics.jsonl"

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Adds the line of a round; the whole line goes under private/ if a part is withheld.

        Args:
            row: The metrics of the round.
        """
        path = self.path / "metrics.jsonl"
        if self.withheld:
            # The whole line first: after a crash between the two, `cut_metrics` makes the public
            # one of it.
            with writing(self._private), open(self._private, "ab") as file:
                file.write(as_line(row))
        with writing(path), open(path, "ab") as file:
            file.write(as_line(publish_row(row, self.withheld, last=False)))

    def sync_metrics(self) -> None:
        """Makes the metrics survive a power cut, since a seal is about to say what they are."""
        for path in (self.path / "metrics.jsonl", self._private):
            if path.exists():
                with writing(path), open(path, "rb") as file:
                    os.fsync(file.fileno())

    def published_metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl, without those kept apart."""
        return read_rows(self.path / "metrics.jsonl")

    def private_metrics(self) -> list[dict[str, Any]] | None:
        """Returns the lines that are kept apart; None where there are none."""
        return read_rows(self._private) if self._private.exists() else None

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the whole lines of all rounds; one that a crash cut short is left out."""
        path = self._private if self._private.exists() else self.path / "metrics.jsonl"
        return read_rows(path)

    def cut_metrics(self, rounds: int) -> None:
        """Forgets the metrics of rounds that will be run again.

        Args:
            rounds: How many rounds are over; later ones are forgotten.
        """
        self._write_metrics([row for row in self.metrics() if row["round"] < rounds], ended=False)

    def publish_last_scores(self) -> None:
        """Rewrites metrics.jsonl of a run that has ended, with the scores of its last model."""
        if self.withheld:
            # The guarantee covers the last model, so its scores may be published; those of models
            # before it may not.
            self._write_metrics(self.metrics(), ended=True)

    def _write_metrics(self, rows: list[dict[str, Any]], *, ended: bool) -> None:
        if self.withheld:
            with writing(self._private):
                write_whole(self._private, b"".join(as_line(row) for row in rows))
        published = [publish_row(row, self.withheld, last=False) for row in rows]
        if ended and rows:
            published[-1] = publish_row(rows[-1], self.withheld, last=True)
        path = self.path / "metrics.jsonl"
        with writing(path):
            write_whole(path, b"".join(as_line(row) for row in published))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file of metrics; one that a crash cut short is left out.

    Args:
        path: The file.

    Returns:
        One entry per line; none where there is no file.

    Raises:
        UserError: A line is no JSON, or does not say of which round it is.
    """
    try:
        # A line ends with its newline: what follows the last one was cut short by a crash.
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    try:
        rows = [
            {key: math.inf if value == "inf" else value for key, value in json.loads(line).items()}
            for line in lines
        ]
    except (ValueError, AttributeError):
        raise UserError(f"{path} is damaged: a line is not JSON.") from None
    unnumbered = [
        place for place, row in enumerate(rows, start=1) if not isinstance(row.get("round"), int)
    ]
    if unnumbered:
        raise UserError(
            f"{path} is damaged: line {unnumbered[0]} does not say of which round it is."
        )
    return rows


def protocol_digest(protocol: Protocol) -> str:
    """Returns the SHA-256 of the protocol as it is written to the run folder.

    Args:
        protocol: The federation whose rounds are played.
    """
    return hashlib.sha256(dumps(protocol).encode()).hexdigest()


def claimed_path(name: str, root: Path) -> Path:
    """Makes and returns `runs/<name>-<n>` with the first number that is free.

    Args:
        name: What the run is about, as its data are called.
        root: The folder of all runs.

    Returns:
        The new folder, which is empty.
    """
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "run"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                # Making the folder claims the number: a look and then a step would let two
                # processes get the same.
                (root / f"{stem}-{number}").mkdir()
                return root / f"{stem}-{number}"
            except FileExistsError:
                number += 1


def now() -> str:
    """Returns the present time, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def as_json(value: Mapping[str, Any]) -> bytes:
    """Returns a JSON document for people to read, with a newline at its end.

    Args:
        value: Its entries.
    """
    return (json.dumps(to_json_value(value), indent=2, allow_nan=False) + "\n").encode()


def as_line(row: Mapping[str, Any]) -> bytes:
    """Returns one line of JSON; infinity is the string "inf".

    Args:
        row: Its entries.
    """
    values = {
        key: "inf" if isinstance(value, float) and math.isinf(value) else value
        for key, value in row.items()
    }
    return (json.dumps(values, allow_nan=False) + "\n").encode()
