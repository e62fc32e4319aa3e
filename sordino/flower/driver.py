"""Trains and resumes across machines: hands a run to the SuperLink, and follows its run folder.

The training runs in a process that the SuperLink starts, which also writes the run folder. So a
training is started on the SuperLink's machine.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file
from pathlib import Path
from typing import Any

import numpy as np

from sordino.engines.choice import SuperLink
from sordino.engines.run_options import Watch
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.files import lock_file
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.flower.agreement import make_path_absolute, refuse_unsupported
from sordino.flower.flower_commands import (
    APP,
    CONNECTION,
    CommandFailed,
    require_flower,
    run_flwr,
    write_connection,
)
from sordino.flower.superlink_probe import probe_superlink
from sordino.flower.upload_requests import OTHER_TRAINING
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import Missed
from sordino.protocol import Protocol, SordinoError, UserError, dumps
from sordino.protocol.errors import format_command
from sordino.protocol.file import toml_value

# The file of an error that ended the training, written by the ServerApp.
OUTCOME = "outcome.json"
# What is added where clients answer that they take part in another training.
BOUND = (
    "They are bound to a training that began before. If it is that one that you mean, go on with "
    "it: sordino resume RUN."
)
# Seconds between two looks into the run folder.
LOOK = 0.3
# How often a run is resumed by itself after its SuperLink was lost.
RETURNS = 5
# Seconds without a process that holds the run folder after which the run counts as lost.
GONE = 5.0
# Seconds without news after which Flower is asked whether the run still runs.
ASK = 20.0


@dataclass(frozen=True, kw_only=True)
class FollowedRun:
    """Describes a run that another process trains.

    Attributes:
        protocol: The federation that the machines train.
        sizes: Number of records of every client.
    """

    protocol: Protocol
    sizes: np.ndarray


class LostRun(SordinoError):
    """Is raised where a run on Flower ended without an outcome."""


def train_across(
    protocol: Protocol,
    superlink: SuperLink,
    *,
    folder: Path,
    evaluate_every: int,
    keep_uploads: int,
    signer: str,
    watch: Watch,
) -> Run:
    """Trains on the machines that are connected to a SuperLink.

    Args:
        protocol: The federation that the machines train.
        superlink: Where the machines meet, and how long they are waited for.
        folder: The run folder; a run that never began leaves none.
        evaluate_every: Rounds between two scorings; 0 for none.
        keep_uploads: Rounds between two whose uploads are kept; 0 for never.
        signer: Fingerprint of the key that signs the run when it has ended; empty for none.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        SordinoError: It was refused, failed, or was lost.
    """
    try:
        require_flower()
        refuse_unsupported(protocol)
        settings = {
            "protocol": dumps(make_path_absolute(protocol)),
            "folder": str(folder.absolute()),
            "evaluate-every": evaluate_every,
            "keep-uploads": keep_uploads,
            "signer": signer,
        }
        return submit_run(superlink, settings, folder, watch)
    # Otherwise the folder of a run that never began would block its name.
    finally:
        # This succeeds only if the folder is still empty.
        with suppress(OSError):
            folder.rmdir()


def resume_across(place: RunFolder, superlink: SuperLink | None, signer: str, watch: Watch) -> Run:
    """Resumes a run across machines.

    Args:
        place: The run folder.
        superlink: The SuperLink; None for the one where the run began.
        signer: Fingerprint of the key that signs the run when it has ended; empty for none.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        SordinoError: There is nothing to resume, or it was refused, failed, or was lost.
    """
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
    settings = {**make_resume_settings(place.path), "signer": signer}
    return submit_run(superlink, settings, place.path, watch)


def make_resume_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of a run on Flower that resumes a run.

    Args:
        folder: The run folder.
    """
    return {"folder": str(folder.absolute()), "resume": True}


def submit_run(
    superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch
) -> Run:
    """Hands a run to the SuperLink and follows it to its end.

    A SuperLink that was lost is waited for as long as clients are, and the run is resumed: the
    files on disk decide, so nothing is charged or computed twice.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
        settings: Settings of the run on Flower.
        folder: The run folder.
        watch: Callbacks of the user.

    Returns:
        The run.

    Raises:
        LostRun: It was lost, and could not be resumed.
    """
    known = False
    # A run may be lost several times in a training of days, yet a fault that repeats must end.
    for left in reversed(range(RETURNS + 1)):
        try:
            return submit_once(superlink, settings, folder, watch, known=known)
        except LostRun as lost:
            # A folder without a protocol never began a run, so that there is nothing to resume.
            known = (folder / "protocol.toml").exists()
            if left == 0 or not known:
                raise
            watch.on_message(
                f"{lost}\nWaiting up to {superlink.patience:g} s to continue by itself."
            )
            trouble = wait_for_superlink(superlink)
            if trouble is not None:
                raise LostRun(f"{lost}\nThe SuperLink: {trouble}.") from None
            settings = make_resume_settings(folder)
    raise LostRun(f"the run was lost {RETURNS} times: {format_command('resume', folder)}")


def wait_for_superlink(superlink: SuperLink) -> str | None:
    """Waits until a SuperLink answers.

    Args:
        superlink: Where the machines meet, and how long they are waited for.

    Returns:
        Why it did not answer within its patience; None if it did.
    """
    end = time.monotonic() + superlink.patience
    trouble = probe_superlink(superlink.address, superlink.certificate).trouble
    while trouble is not None and time.monotonic() <= end:
        time.sleep(1.0)
        trouble = probe_superlink(superlink.address, superlink.certificate).trouble
    return trouble


def submit_once(
    superlink: SuperLink, settings: Mapping[str, Any], folder: Path, watch: Watch, *, known: bool
) -> Run:
    """Hands a run to the SuperLink and follows it until it ends or is lost.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
        settings: Settings of the run on Flower.
        folder: The run folder.
        watch: Callbacks of the user.
        known: Whether the user knows already that this run began.

    Returns:
        The run.

    Raises:
        LostRun: It was lost.
        UserError: The SuperLink did not take it.
    """
    # A home of Flower for this run only: the user's own connections are not changed.
    with tempfile.TemporaryDirectory(prefix="sordino-flower-") as temporary, as_file(APP) as app:
        home = Path(temporary) / "home"
        write_connection(home, superlink.address, superlink.certificate)
        config = Path(temporary) / "run.toml"
        write_run_config(config, {**settings, **describe_superlink(superlink), "report": False})
        watch.on_message(f"Handing the run to the SuperLink at {superlink.address}.")
        arguments = ["run", str(app), CONNECTION, "--run-config", str(config)]
        try:
            flower_run = str(run_flwr(home, arguments)["run-id"])
        except CommandFailed as error:
            words = (
                f"the SuperLink at {superlink.address} took no run. Is it running, and is its "
                f"certificate the right one? {error}"
            )
            # A SuperLink that is just restarting refuses runs; one that never took any is
            # misconfigured.
            if known:
                raise LostRun(words) from None
            raise UserError(words) from None
        watch.on_message(
            f"It is run {flower_run} on Flower; waiting up to {superlink.patience:g} s for its "
            "clients."
        )
        follower = RunFollower(home, flower_run, folder, watch, known=known)
        try:
            return follower.follow()
        # Without this the ServerApp would train on after the user has stopped.
        except KeyboardInterrupt:
            with suppress(CommandFailed):
                run_flwr(home, ["stop", flower_run, CONNECTION])
            raise


def describe_superlink(superlink: SuperLink) -> dict[str, Any]:
    """Returns the settings of a run on Flower that describe its SuperLink.

    Args:
        superlink: Where the machines meet, and how long they are waited for.
    """
    certificate = ""
    if superlink.certificate:
        certificate = str(Path(superlink.certificate).absolute())
    return {
        "superlink": superlink.address,
        "certificate": certificate,
        "patience": superlink.patience,
        "deadline": superlink.deadline,
    }


def write_run_config(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings of a run on Flower to a file.

    Args:
        path: The file.
        settings: The settings.
    """
    lines = [f"{key} = {toml_value(value)}\n" for key, value in settings.items()]
    path.write_text("".join(lines), encoding="utf-8")


class RunFollower:
    """Watches a run folder that another process writes. It holds what was reported."""

    def __init__(
        self, home: Path, flower_run: str, folder: Path, watch: Watch, *, known: bool = False
    ) -> None:
        """Creates the follower.

        Args:
            home: Folder of Flower's own files.
            flower_run: Id of the run on Flower.
            folder: The run folder.
            watch: Callbacks of the user.
            known: Whether the user knows already that this run began.
        """
        self._home = home
        self._flower_run = flower_run
        self._folder = folder
        self._watch = watch
        self._known = known
        self._started = False
        # How many of these were reported.
        self._rounds = 0
        self._silences = 0
        self._rejections = 0
        # When something new came, and when a process was last seen to hold the folder.
        self._news = time.monotonic()
        self._held = time.monotonic()

    def follow(self) -> Run:
        """Reports rounds as they come, and returns the run when it has ended.

        Returns:
            The run.

        Raises:
            SordinoError: It was refused, failed, or was lost.
        """
        # The outcome comes first: a run that failed also looks finished or abandoned.
        while True:
            self._raise_outcome()
            if self._look():
                return Run.load(self._folder)
            if self._is_abandoned():
                # The outcome may have been written between the two looks.
                self._raise_outcome()
                raise LostRun(
                    "the process that trains is gone, as when its SuperLink is killed. "
                    f"Go on with: {format_command('resume', self._folder)}"
                )
            if time.monotonic() - self._news > ASK:
                self._ask_flower()
            time.sleep(LOOK)

    def _look(self) -> bool:
        """Reports news, and returns whether the run has ended."""
        place = RunFolder(self._folder)
        if not (self._folder / "protocol.toml").exists():
            return False
        facts = place.facts()
        if facts.get("flower_run") != self._flower_run:
            # An interrupted run left it so: the process that resumes it has not begun.
            return False
        if not self._started:
            self._begin(place, facts)
        for row in place.metrics()[self._rounds :]:
            self._watch.on_round(RoundMetrics(**row))
            self._rounds += 1
            self._news = time.monotonic()
        for event in self._read_silences()[self._silences :]:
            self._report_silence(event)
            self._silences += 1
        for reason in facts.get("rejected", [])[self._rejections :]:
            self._watch.on_message(reason)
            self._rejections += 1
        return bool(facts["status"] != "unfinished")

    def _begin(self, place: RunFolder, facts: Mapping[str, Any]) -> None:
        """Notes what the folder holds already, and reports that the run begins."""
        self._started = True
        # Rounds of an earlier part of the run were reported then.
        self._rounds = len(place.metrics())
        self._silences = len(self._read_silences())
        self._news = time.monotonic()
        self._held = self._news
        if not self._known:
            begun = FollowedRun(protocol=place.protocol(), sizes=np.array(facts["sizes"]))
            self._watch.on_start(begun, self._folder)

    def _report_silence(self, event: Missed) -> None:
        """Reports the clients that did not contribute to a round."""
        reasons = [
            f"client {client}: {reason}"
            for client, reason in zip(event.clients, event.reasons, strict=True)
        ]
        self._watch.on_message(
            f"Round {event.round + 1} continues without {len(event.clients)} of its clients. "
            f"{'; '.join(reasons)}."
        )
        if any(OTHER_TRAINING in reason for reason in event.reasons):
            self._watch.on_message(BOUND)

    def _is_abandoned(self) -> bool:
        """Returns whether no process has held the folder of an unfinished run for a while.

        Flower reports a run whose process was killed as running for over a minute; the system
        releases the process's lock at once.
        """
        # The process that trains holds this lock, and the system frees it however that process
        # ends.
        path = self._folder / "lock"
        if not self._started or not path.exists():
            return False
        handle = os.open(path, os.O_RDWR)
        try:
            free = lock_file(handle)
        finally:
            os.close(handle)
        now = time.monotonic()
        if not free:
            self._held = now
        return now - self._held > GONE

    def _read_silences(self) -> list[Missed]:
        events = read_ledger(self._folder / "ledger.jsonl").events
        return [event for event in events if isinstance(event, Missed)]

    def _raise_outcome(self) -> None:
        """Raises the error that ended the training in the other process, if there is one."""
        path = self._folder / OUTCOME
        if not path.exists():
            return
        outcome = json.loads(path.read_bytes())
        # Of another run on Flower: one that was refused since this one works on the folder, or an
        # earlier one that nobody followed to its end.
        if outcome.get("flower_run") != self._flower_run:
            return
        path.unlink()
        words = str(outcome["error"])
        if OTHER_TRAINING in words:
            words = f"{words} {BOUND}"
        error = SordinoError(words)
        error.exit_code = outcome["exit_code"]
        raise error

    def _ask_flower(self) -> None:
        """Asks Flower whether the run still runs."""
        self._news = time.monotonic()
        arguments = ["list", "--run-id", self._flower_run, CONNECTION]
        try:
            runs: Any = run_flwr(self._home, arguments)["runs"]
        except CommandFailed as error:
            raise LostRun(
                "the SuperLink does not answer. Start it, then: "
                f"{format_command('resume', self._folder)}\n{error}"
            ) from None
        status = runs[0]["status"]
        if not status.startswith("finished"):
            return
        # The run may have ended between the last look and Flower's answer.
        self._raise_outcome()
        if self._look():
            return
        if not (self._folder / "protocol.toml").exists() and status == "finished:completed":
            raise LostRun(
                f"the run has ended, and its folder {self._folder.absolute()} is on the "
                "SuperLink's machine, which is not this one."
            )
        raise LostRun(
            f"the run on Flower ended unexpectedly: {status}. {runs[0]['status-details']} "
            f"Go on with: {format_command('resume', self._folder)}"
        )
