"""Secure sums through the client's guard and the coordinator's code: exact whoever falls silent, and nothing below the threshold."""

from __future__ import annotations

import os
from functools import partial
from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino.flower import connected_clients, reply_collection
from sordino.privacy.ledger_lines import SharesGiven
from tests.flower.summing import Summing, summed_plan

SLOW = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch) -> None:
    """No poll is slept through, and no disk is waited for: nothing here is about power cuts."""
    monkeypatch.setattr(reply_collection, "POLL", 0.0)
    monkeypatch.setattr(connected_clients, "POLL", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_a_round_takes_two_messages_and_gives_the_exact_sum(tmp_path) -> None:
    summing = Summing(tmp_path, summed_plan())
    for round_index in range(3):
        summing.grid.waves.clear()
        opened = summing.sum(round_index)
        np.testing.assert_array_equal(opened.total, summing.true_sum(range(5)))
        assert opened.absent == {}
        waves = [wave for _, wave in summing.grid.waves]
        first = ["key"] * 5 + ["prepare"] * 5 if round_index == 0 else []
        assert waves == first + ["mask"] * 5 + ["unmask"] * 5


def subsets(clients: range) -> list[tuple[int, ...]]:
    return [chosen for size in range(len(clients) + 1) for chosen in combinations(clients, size)]


def is_silent(phase: str, silent: tuple[int, ...], client: int, wave: str) -> bool:
    return wave == phase and client in silent


PHASES = {3: ("prepare", "mask", "confirm", "unmask"), 4: ("prepare", "mask", "unmask")}
# Each takes seconds: one half of them is for complete runs.
CASES = [
    pytest.param(threshold, phase, heard, marks=[] if (threshold, heard) == (3, True) else SLOW)
    for threshold, phases in PHASES.items()
    for phase in phases
    for heard in (True, False)
]


@pytest.mark.parametrize(("threshold", "phase", "heard"), CASES)
def test_every_subset_of_dropouts_gives_the_exact_sum_of_the_others(
    tmp_path, threshold, phase, heard
) -> None:
    summing = Summing(tmp_path, summed_plan(threshold=threshold))
    for round_index, silent in enumerate(subsets(range(5))):
        if phase == "prepare":
            # Else preparations ride on the round before.
            summing.start()
        fall_silent = partial(is_silent, phase, silent)
        if heard:
            summing.grid.unheard = fall_silent
        else:
            summing.grid.lost = fall_silent
        opened = summing.sum(round_index)
        # Who confirms or unmasks too late has an upload in the sum.
        gone = set(silent) if phase in ("prepare", "mask") else set()
        if 5 - len(silent) < threshold:
            assert opened.total is None
            assert set(opened.absent) == set(range(5))
            continue
        assert set(opened.absent) == gone
        np.testing.assert_array_equal(opened.total, summing.true_sum(set(range(5)) - gone))
        given = [event for event in summing.store(0).events if isinstance(event, SharesGiven)]
        if 0 not in silent:
            assert given[-1].round == round_index
            assert given[-1].threshold == threshold
            assert set(given[-1].survivors) == set(range(5)) - gone
