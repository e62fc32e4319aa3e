"""Follows a run that the SuperLink's process trains, by what it writes to the run folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.engines.run_options import Watch
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.files import lock_file
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.flower.flower_commands import CONNECTION, CommandFailed, run_flwr
from sordino.flower.upload_requests import OTHER_TRAINING
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import Missed
from sordino.protocol import Protocol, SordinoError
from sordino.protocol.errors import format_command

# The file of an error that ended the training, written by the ServerApp.
OUTCOME = "outcome.json"
# What is added where clients answer that they take part in another training.
BOUND = (
    "They are bound to a training that began before. If it is that one that you mean, go on with "
    "it: sordino resume RUN."
)
# Seconds between two looks into the run folder.
LOOK = 0.3
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
