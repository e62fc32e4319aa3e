"""A counterexample that runs: a process of its own trains and attacks, and says after every look what it has shown so far."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol import SordinoError, UserError

MOST = 2  # counterexamples at a time
MODULE = "sordino.ui.explorer.measuring"
# `sordino.papers.measured.SCHEDULES` has them too, and needs torch, which a page should not wait for.
MEASURABLE = (
    "convergent/theorem-3a",
    "convergent/theorem-3b",
    "convergent/theorem-3c",
    "convergent/theorem-4",
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is shown after so many trainings on each side."""

    trainings: int
    planned: int
    mu_lower: float
    verdict: str = ""


class Measuring:
    """A process that measures a claim, and the looks that it has reported. It holds the process until it has ended."""

    running: ClassVar[set[Measuring]] = set()

    def __init__(self, claim: str, *, rounds: int, clients: int) -> None:
        if len(self.running) >= MOST:
            raise UserError(
                f"{MOST} counterexamples are being run already: wait until one has ended, or stop it."
            )
        self.parameters = {"rounds": rounds, "clients": clients}
        self.looks, self.problem, self._stopped = list[Look](), "", False
        call = [sys.executable, "-m", MODULE, claim, json.dumps(self.parameters)]
        self._process = subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.running.add(self)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return not self._reader.is_alive()

    def stop(self) -> None:
        """End the process."""
        self._stopped = True
        self._process.terminate()

    def _read(self) -> None:
        """Collect looks until the process has ended."""
        try:
            for line in self._process.stdout or ():
                self.looks.append(Look(**json.loads(line)))
            words = (
                self._process.stderr.read() if self._process.stderr is not None else ""
            ).strip()
            if self._process.wait() != 0:
                self.problem = (
                    "stopped"
                    if self._stopped
                    else (words.splitlines()[-1] if words else "it ended without a word")
                )
        finally:
            self.running.discard(self)


@atexit.register
def stop_all() -> None:
    """No counterexample outlives the server."""
    for one in list(Measuring.running):
        one.stop()


def say_looks(claim: str, parameters: dict[str, int]) -> None:
    """Measure a claim and print every look, a line each."""
    from sordino.papers.catalogue import find
    from sordino.papers.claims import check
    from sordino.papers.measured import watched

    for look in watched(check(find(claim), **parameters)):
        verdict = look.finding.claims[0].verdict if look.finding is not None else ""
        line = {
            "trainings": look.trainings,
            "planned": look.planned,
            "mu_lower": look.mu_lower,
            "verdict": verdict,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        say_looks(sys.argv[1], json.loads(sys.argv[2]))
    except SordinoError as error:
        sys.exit(str(error))
