"""The experiment of accuracy under secure aggregation: its settings are valid, and its rows keep what they promise."""

import math
from pathlib import Path

import pytest

from experiments.secure_accuracy import CASES, NO_NOISE, find_accuracies, read_csv
from sordino.attacks.twin import remove_protocol_noise

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "experiments.md").read_text()
ROWS = read_csv(REPOSITORY / "experiments" / "secure_accuracy.csv")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_valid_protocol_with_a_twin_without_noise(case) -> None:
    assert case.protocol.privacy.budget is None
    assert remove_protocol_noise(case.protocol).noise.multiplier == 0


def test_no_row_spends_more_than_its_target() -> None:
    for (_, target, _), row in ROWS.items():
        limit = math.inf if target == NO_NOISE else float(target)
        assert float(row["epsilon"]) <= limit
        assert row["status"] == "finished"


def test_what_was_measured_reaches_what_was_to_be_reached() -> None:
    rows = list(ROWS.values())
    for case in CASES:
        for epsilon, wanted in zip(case.epsilons, case.at_least, strict=False):
            for accuracy in find_accuracies(rows, case.name, f"{epsilon:g}"):
                free = max(find_accuracies(rows, case.name, NO_NOISE))
                reached = accuracy >= (free - 0.04 if wanted is None else wanted)
                # What falls short stays in the table, and the page says so.
                assert reached or f"**{case.title.split(',')[0]} falls short.**" in PAGE
