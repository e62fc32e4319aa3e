"""What noise cost a run: its scores next to those of the same training without noise.

The training without noise is not private. Its scores are kept apart from everything that is
published about the run: in files below private/, marked as what they are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.federation.store.files import write_whole, writing
from sordino.federation.store.run_folder import PRIVATE, as_json
from sordino.report.number_formats import format_measurement, format_percent
from sordino.report.run_summary import find_last_scores
from sordino.report.writing import PAGE, write_page

if TYPE_CHECKING:
    from sordino.federation.store.run import Run

NOT_PRIVATE = (
    "Not private: this is the same training without noise, for comparison. No guarantee covers its "
    "model or its scores. Do not publish them."
)
FILE = "without-noise.json"


@dataclass(frozen=True, kw_only=True)
class NoiseCost:
    """Holds the last scores of a run and of its twin without noise.

    Attributes:
        accuracy: The accuracy of the twin; NaN where it is not known.
        loss: The loss of the twin.
        accuracy_lost: The accuracy of the twin minus that of the run; NaN where either is unknown.
        twin: The folder of the twin.
        private: Always False.
        note: A sentence that says what that means.
    """

    accuracy: float
    loss: float
    accuracy_lost: float
    twin: str
    private: bool = False
    note: str = NOT_PRIVATE

    @property
    def sentence(self) -> str:
        """The cost of the noise, in words."""
        if math.isnan(self.accuracy):
            return f"Without noise: loss {format_measurement(self.loss)}. {NOT_PRIVATE}"
        points = f"{100 * self.accuracy_lost:.1f} points"
        return (
            f"Without noise: accuracy {format_percent(self.accuracy)}, so noise cost {points}. "
            f"{NOT_PRIVATE}"
        )

    def as_document(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        return asdict(self)


def compare_with_twin(run: Run, twin: Run) -> NoiseCost:
    """Compares the scores of a run with those of the same training without noise.

    Args:
        run: The private run.
        twin: The same training without noise.

    Example:
        >>> compare_with_twin(run, twin).sentence  # doctest: +SKIP
        'Without noise: accuracy 93.1 %, so noise cost 2.4 points. Not private: ...'
    """
    own = find_last_scores(run)
    free = find_last_scores(twin)
    return NoiseCost(
        accuracy=free["accuracy"],
        loss=free["loss"],
        accuracy_lost=free["accuracy"] - own["accuracy"],
        twin=str(twin.folder),
    )


def write_noise_cost(run: Run, cost: NoiseCost, page: str) -> Path:
    """Writes the comparison below private/ in the run's folder; report.html is not changed.

    Args:
        run: The private run.
        cost: The comparison.
        page: The report with the comparison in it, as HTML.

    Returns:
        The file of the report.

    Raises:
        UserError: A file cannot be written.
    """
    folder = run.folder / PRIVATE
    with writing(folder):
        folder.mkdir(exist_ok=True)
        write_whole(folder / FILE, as_json(cost.as_document()))
    return write_page(page, folder / PAGE)
