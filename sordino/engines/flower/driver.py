"""`train` and `resume` across machines: hand a run to the SuperLink, and follow its folder until it ends.

The loop runs in a process that the SuperLink starts, and so does everything that writes the run folder. Whoever starts a training does so
on the SuperLink's machine.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.resources import as_file
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.engines.choice import SuperLink
from sordino.engines.flower.agreement import refuse_across_machines, with_whole_path
from sordino.engines.flower.probing import probe_superlink
from sordino.engines.flower.processes import (
    APP,
    CONNECTION,
    CommandFailed,
    flwr,
    require_flower,
    write_connection,
)
from sordino.federation.folder import RunFolder
from sordino.federation.loop import RoundMetrics
from sordino.federation.run import Run
from sordino.federation.storage import locked
from sordino.privacy.ledger import Missed
from sordino.privacy.ledger import read as read_ledger
from sordino.protocol import Protocol, SordinoError, UserError, dumps
from sordino.protocol.errors import typed
from sordino.protocol.file import toml_value

if TYPE_CHECKING:
    from sordino.engines.training import Listener
    from sordino.federation.setup import Begun

OUTCOME = "outcome.json"
BOUND = "the agreement is for one training, and this is another"  # as custody.py refuses it
LOOK = 0.3  # seconds between two looks into the run folder
RETURNS = 5  # how often a run goes on by itself after its SuperLink was lost
GONE = 5.0  # seconds without a process that holds the run folder after which it is gone
ASK = 20.0  # seconds without news after which Flower is asked whether the run still runs


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What is known of a run that begins on another process."""

    protocol: Protocol
    sizes: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who is told what happens in a run: when it begins, after every round, and what there is to say besides."""

    on_start: Callable[[Begun, Path], None]
    on_round: Listener
    on_message: Callable[[str], None]


class LostRun(SordinoError):
    """A run on Flower ended without saying how."""


def train_across(
    protocol: Protocol,
    superlink: SuperLink,
    *,
    folder: Path,
    evaluate_every: int,
    keep_uploads: int,
    watch: Watch,
) -> Run:
    """Train on the machines that meet at a SuperLink. A run that never began leaves nothing behind."""
    told = {"evaluate-every": evaluate_every, "keep-uploads": keep_uploads}
    try:
        require_flower()
        refuse_across_machines(protocol)
        plan = dumps(with_whole_path(protocol))
        return submitted(
            superlink, {"protocol": plan, "folder": str(folder.absolute()), **told}, folder, watch
        )
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if it is empty still


def resume_across(place: RunFolder, superlink: SuperLink | None, watch: Watch) -> Run:
    """Go on with a run across machines, at the SuperLink where it began or at another."""
    require_flower()
    facts = place.facts()
    if facts["status"] != "unfinished":
        raise UserError(f"{place.path} is {facts['status']}: there is nothing left to run.")
    if superlink is None:
        superlink = SuperLink(
            address=facts["superlink"],
            certificate=facts["certificate"] or None,
            patience=facts["patience"],
            deadline=facts["deadline"],
        )
    return submitted(
        superlink, {"folder": str(place.path.absolute()), "resume": True}, place.path, watch
    )


def submitted(superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch) -> Run:
    """Hands a run to the SuperLink and follows it to its end.

    A SuperLink that was lost is waited for as long as clients are, and the run goes on where it
    was: what is on disk decides, so nothing is charged or computed twice.
    """
    known = False
    for left in reversed(range(RETURNS + 1)):
        try:
            return submit_once(superlink, settings, folder, watch, known=known)
        except LostRun as lost:
            known = (folder / "protocol.toml").exists()
            if left == 0 or not known:
                raise
            watch.on_message(f"{lost}\nWaiting up to {superlink.patience:g} s to go on by itself.")
            if not wait_for_superlink(superlink):
                raise
            settings = {"folder": str(folder.absolute()), "resume": True}
    raise LostRun(f"the run was lost {RETURNS} times: {typed('resume', folder)}")


def wait_for_superlink(superlink: SuperLink) -> bool:
    """Waits until a SuperLink answers; False if it does not within its patience."""
    end = time.monotonic() + superlink.patience
    while probe_superlink(superlink.address, superlink.certificate).trouble is not None:
        if time.monotonic() > end:
            return False
        time.sleep(1.0)
    return True


def submit_once(
    superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch, *, known: bool
) -> Run:
    """Hands a run to the SuperLink and follows it until it ends or is lost.

    Args:
        superlink: Where machines meet.
        settings: What the run is told.
        folder: The run's folder.
        watch: Who is told what happens.
        known: Whether it was told already that this run began.
    """
    noted = {
        **asdict(superlink),
        "certificate": str(Path(superlink.certificate).absolute()) if superlink.certificate else "",
    }
    noted["superlink"] = noted.pop("address")
    with tempfile.TemporaryDirectory(prefix="sordino-flower-") as temporary, as_file(APP) as app:
        home = Path(temporary) / "home"
        write_connection(home, superlink.address, superlink.certificate)
        config = Path(temporary) / "run.toml"
        said = {**settings, **noted, "report": False}
        config.write_text(
            "".join(f"{key} = {toml_value(value)}\n" for key, value in said.items()),
            encoding="utf-8",
        )
        watch.on_message(f"Handing the run to the SuperLink at {superlink.address}.")
        try:
            flower_run = str(
                flwr(home, ["run", str(app), CONNECTION, "--run-config", str(config)])["run-id"]
            )
        except CommandFailed as error:
            words = (
                f"the SuperLink at {superlink.address} took no run. Is it running, and is its "
                f"certificate the right one? {error}"
            )
            raise LostRun(words) if known else UserError(words) from None
        watch.on_message(
            f"It is run {flower_run} on Flower; waiting up to {superlink.patience:g} s for its clients."
        )
        try:
            return Following(home, flower_run, folder, watch, known=known).to_the_end()
        except KeyboardInterrupt:
            with suppress(CommandFailed):
                flwr(home, ["stop", flower_run, CONNECTION])
            raise


class Following:
    """Watches the folder of a run that another process writes. It holds what was seen."""

    def __init__(
        self, home: Path, flower_run: str, folder: Path, watch: Watch, *, known: bool = False
    ) -> None:
        self._home, self._flower_run, self._folder, self._watch = home, flower_run, folder, watch
        self._known = known
        self._seen = self._missed = self._rejected = 0
        self._started, self._news = False, time.monotonic()
        self._held = time.monotonic()

    def to_the_end(self) -> Run:
        """Report rounds as they come; the run when it has ended.

        Raises:
            SordinoError: it was refused, or ended without a word.
        """
        while True:
            self._raise_what_was_told()
            if self._look():
                return Run.load(self._folder)
            if self._writer_is_gone():
                self._raise_what_was_told()
                raise LostRun(
                    "the process that trains is gone, as when its SuperLink is killed. "
                    f"Go on with: {typed('resume', self._folder)}"
                )
            if time.monotonic() - self._news > ASK:
                self._ask()
            time.sleep(LOOK)

    def _look(self) -> bool:
        """Look for new rounds; True when the run has ended."""
        place = RunFolder(self._folder)
        if not (self._folder / "protocol.toml").exists():
            return False
        facts = place.facts()
        if facts.get("flower_run") != self._flower_run:
            return False  # as an interrupted run left it: the process that goes on with it has not begun
        if not self._started:
            self._started, self._seen, self._news = True, len(place.metrics()), time.monotonic()
            self._held = self._news
            self._missed = len(self._silences())
            if not self._known:
                begun = Followed(protocol=place.protocol(), sizes=np.array(facts["sizes"]))
                self._watch.on_start(begun, self._folder)
        for row in place.metrics()[self._seen :]:
            self._watch.on_round(RoundMetrics(**row))
            self._seen, self._news = self._seen + 1, time.monotonic()
        for event in self._silences()[self._missed :]:
            who = "; ".join(
                f"client {client}: {reason}"
                for client, reason in zip(event.clients, event.reasons, strict=True)
            )
            self._watch.on_message(
                f"Round {event.round + 1} goes on without {len(event.clients)} of its clients. {who}."
            )
            self._missed += 1
            if any(BOUND in reason for reason in event.reasons):
                self._watch.on_message(
                    "They are bound to a training that began before. If it is that one that you "
                    "mean, stop this run and go on with it: sordino resume RUN."
                )
        for reason in facts.get("rejected", [])[self._rejected :]:
            self._watch.on_message(reason)
            self._rejected += 1
        return bool(facts["status"] != "unfinished")

    def _writer_is_gone(self) -> bool:
        """Whether nobody has held the folder of an unfinished run for a while.

        Flower takes a run whose process was killed for running for over a minute; the system
        lets go of the process's lock at once.
        """
        path = self._folder / "lock"
        if not self._started or not path.exists():
            return False
        handle = os.open(path, os.O_RDWR)
        try:
            free = locked(handle)
        finally:
            os.close(handle)
        now = time.monotonic()
        if not free:
            self._held = now
        return now - self._held > GONE

    def _silences(self) -> list[Missed]:
        return [
            event
            for event in read_ledger(self._folder / "ledger.jsonl").events
            if isinstance(event, Missed)
        ]

    def _raise_what_was_told(self) -> None:
        """Raise what the other process could not raise here."""
        path = self._folder / OUTCOME
        if not path.exists():
            return
        told = json.loads(path.read_bytes())
        path.unlink()
        error = SordinoError(told["error"])
        error.exit_code = told["exit_code"]
        raise error

    def _ask(self) -> None:
        """Ask Flower whether the run still runs."""
        self._news = time.monotonic()
        try:
            runs: Any = flwr(self._home, ["list", "--run-id", self._flower_run, CONNECTION])["runs"]
        except CommandFailed as error:
            raise LostRun(
                f"the SuperLink does not answer. Start it, then: {typed('resume', self._folder)}\n{error}"
            ) from None
        status, details = runs[0]["status"], runs[0]["status-details"]
        if not status.startswith("finished"):
            return
        self._raise_what_was_told()
        if self._look():
            return
        if not (self._folder / "protocol.toml").exists() and status == "finished:completed":
            raise LostRun(
                f"the run has ended, and its folder {self._folder.absolute()} is on the SuperLink's machine, which is not this one."
            )
        raise LostRun(
            f"the run on Flower ended unexpectedly: {status}. {details} Go on with: {typed('resume', self._folder)}"
        )
