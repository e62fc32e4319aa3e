"""Runs counterexamples: a process trains and attacks, and reports what it has shown so far."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol import SordinoError, UserError

# The number of counterexamples that may run at a time. Each takes a whole core.
MOST = 2
MODULE = "sordino.explorer.measuring"
# `sordino.papers.measured.SCHEDULES` has them too, but needs torch, which no page should wait for.
MEASURABLE = (
    "convergent/theorem-3a",
    "convergent/theorem-3b",
    "convergent/theorem-3c",
    "convergent/theorem-4",
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """Holds what an audit has shown so far.

    Attributes:
        trainings: The number of trainings done, on each side.
        planned: The number of trainings planned, on each side.
        mu_lower: The measured lower bound.
        verdict: The verdict on the claim; empty until the end.
    """

    trainings: int
    planned: int
    mu_lower: float
    verdict: str = ""


class ClaimMeasurement:
    """Runs a process that measures a claim, and collects the looks that it reports."""

    running: ClassVar[set[ClaimMeasurement]] = set()

    def __init__(self, claim: str, *, rounds: int, clients: int) -> None:
        """Starts the process.

        Args:
            claim: The name of the claim.
            rounds: The number of rounds of each training.
            clients: The number of clients of the federation.

        Raises:
            UserError: Enough counterexamples are running already.
        """
        if len(self.running) >= MOST:
            raise UserError(
                f"{MOST} counterexamples are running already: wait until one has ended, or stop it."
            )
        self.parameters = {"rounds": rounds, "clients": clients}
        self.looks: list[Look] = []
        self.problem = ""
        self._stopped = False
        # A process, since training in the server would stop every other visitor's page.
        call = [sys.executable, "-m", MODULE, claim, json.dumps(self.parameters)]
        self._process = subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.running.add(self)
        # A thread reads, so that a full pipe never stops the process.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def over(self) -> bool:
        """Whether the process has ended and all its looks have been collected."""
        return not self._reader.is_alive()

    def stop(self) -> None:
        """Ends the process."""
        self._stopped = True
        self._process.terminate()

    def _read(self) -> None:
        """Collects looks until the process has ended."""
        try:
            for line in self._process.stdout or ():
                self.looks.append(Look(**json.loads(line)))
            # The last line of the errors is the message; a traceback would not fit the page.
            lines = ["it ended without a message"]
            if self._process.stderr is not None:
                lines += self._process.stderr.read().strip().splitlines()
            # The exit code is read after both pipes are empty, or the process could wait for ever.
            if self._process.wait() != 0:
                self.problem = lines[-1]
                if self._stopped:
                    self.problem = "stopped"
        finally:
            self.running.discard(self)


@atexit.register
def stop_all() -> None:
    """Stops all counterexamples: none outlives the server."""
    for one in list(ClaimMeasurement.running):
        one.stop()


def print_looks(claim: str, parameters: dict[str, int]) -> None:
    """Measures a claim and prints every look on a line.

    Args:
        claim: The name of the claim.
        parameters: The parameters of the federation.
    """
    from sordino.papers.catalogue import find
    from sordino.papers.claims import check
    from sordino.papers.measured import measure_in_steps

    for look in measure_in_steps(check(find(claim), **parameters)):
        verdict = ""
        if look.finding is not None:
            verdict = look.finding.claims[0].verdict
        line = {
            "trainings": look.trainings,
            "planned": look.planned,
            "mu_lower": look.mu_lower,
            "verdict": verdict,
        }
        # Flushed, since the page shows every look at once.
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        print_looks(sys.argv[1], json.loads(sys.argv[2]))
    except SordinoError as error:
        sys.exit(str(error))
