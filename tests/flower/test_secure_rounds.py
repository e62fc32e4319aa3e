"""Secure sums through the client's guard and the coordinator's code: exact whoever falls silent, and nothing below the threshold."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino.flower import connected_clients, reply_collection, sum_rounds
from sordino.privacy.ledger_lines import SharesGiven
from sordino.protocol import SecureAggregation
from sordino.secure_sums import key_roster
from sordino.secure_sums.share_holders import Neighbourhood
from tests.flower.summing import Summing, summed_plan

SLOW = [pytest.mark.soak]


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


def test_more_than_ten_clients_sum_as_few_do(tmp_path) -> None:
    """Their numbers have two digits: sorted as text, as in a message, they are in another order."""
    summing = Summing(tmp_path, summed_plan(clients=12, threshold=10))
    summing.grid.lost = partial(is_silent, "unmask", (10,))
    np.testing.assert_array_equal(summing.sum(0).total, summing.true_sum(range(12)))
    summing.grid.lost = partial(is_silent, "mask", (2,))
    opened = summing.sum(1)
    assert set(opened.absent) == {2}
    np.testing.assert_array_equal(opened.total, summing.true_sum(set(range(12)) - {2}))


@pytest.mark.soak
def test_more_than_a_hundred_clients_sum_over_the_graph_that_belongs_to_their_number(
    tmp_path,
) -> None:
    """Numbers of three digits, a wave of confirmations, and a resume without one of them."""
    protocol = summed_plan(clients=120)
    protocol = replace(protocol, channel=SecureAggregation(threshold=108, colluders=5))
    summing = Summing(tmp_path, protocol)
    np.testing.assert_array_equal(summing.sum(0).total, summing.true_sum(range(120)))
    assert summing.rounds._keys.roster.neighbourhood == Neighbourhood(others=33, needed=21)
    summing.start()
    gone = {2, 10, 99, 100, 101, 119}

    def is_lost(client: int, wave: str) -> bool:
        return (client == 110 and wave != "") or (client in gone and wave == "mask")

    summing.grid.lost = is_lost
    opened = summing.sum(1)
    assert set(opened.absent) == {110, *gone}
    np.testing.assert_array_equal(
        opened.total, summing.true_sum(set(range(120)) - set(opened.absent))
    )


def test_a_client_without_a_key_is_left_out_and_taken_in_once_it_is_back(tmp_path) -> None:
    summing = Summing(tmp_path, summed_plan())
    summing.grid.lost = lambda client, wave: client == 2 and wave == "key"
    first = summing.sum(0)
    assert set(first.absent) == {2}
    np.testing.assert_array_equal(first.total, summing.true_sum([0, 1, 3, 4]))
    second = summing.sum(1)
    assert set(second.absent) == {2}
    summing.grid.lost = lambda client, wave: False
    summing.grid.waves.clear()
    third = summing.sum(2)
    assert third.absent == {}
    np.testing.assert_array_equal(third.total, summing.true_sum(range(5)))
    # Its key was asked for, and everybody prepared anew with it.
    assert [wave for _, wave in summing.grid.waves][:6] == ["key"] + ["prepare"] * 5
    assert summing.sum(3).absent == {}


def test_a_run_is_resumed_without_a_client_whose_key_the_others_know(tmp_path) -> None:
    """They write letters to it as well, which a coordinator that was restarted did not expect."""
    summing = Summing(tmp_path, summed_plan())
    np.testing.assert_array_equal(summing.sum(0).total, summing.true_sum(range(5)))
    summing.start()
    summing.grid.lost = lambda client, wave: client == 2 and wave != ""
    for round_index in (1, 2):
        opened = summing.sum(round_index)
        assert set(opened.absent) == {2}
        np.testing.assert_array_equal(opened.total, summing.true_sum([0, 1, 3, 4]))
    summing.grid.lost = lambda client, wave: False
    back = summing.sum(3)
    assert back.absent == {}
    np.testing.assert_array_equal(back.total, summing.true_sum(range(5)))


def test_too_few_keys_cost_nobody_anything(tmp_path) -> None:
    summing = Summing(tmp_path, summed_plan())
    summing.grid.lost = lambda client, wave: client in (2, 3) and wave == "key"
    lost = summing.sum(0)
    assert lost.total is None
    assert "did not answer" in lost.absent[2]
    assert summing.store(0).rounds_paid == []


def test_a_client_whose_key_everybody_knows_is_named_and_left_out(tmp_path, monkeypatch) -> None:
    """A colluder's key of small order cannot end the run, neither for letters nor for a round."""
    summing = Summing(tmp_path, summed_plan())
    genuine = sum_rounds.SecureRounds._take_preparation

    def weaken(self, client, reply) -> None:
        if client == 4:
            reply = replace(reply, mask_public=bytes(32))
        genuine(self, client, reply)

    monkeypatch.setattr(sum_rounds.SecureRounds, "_take_preparation", weaken)
    opened = summing.sum(0)
    assert set(opened.absent) == {4}
    np.testing.assert_array_equal(opened.total, summing.true_sum(range(4)))


def test_a_vector_that_is_no_update_costs_the_round_and_not_the_training(tmp_path) -> None:
    summing = Summing(tmp_path, summed_plan())
    summing.vectors[1][:] = 2**62
    lost = summing.sum(0)
    assert lost.total is None
    assert "the sum was not opened: a coordinate of a round's sum has a magnitude" in lost.absent[0]
    assert summing.store(0).rounds_paid == [0]
    summing.vectors[1][:] = 5
    np.testing.assert_array_equal(summing.sum(1).total, summing.true_sum(range(5)))


def test_sums_over_a_graph_of_neighbours(tmp_path, monkeypatch) -> None:
    """As beyond a hundred clients, with fewer: each holds shares for some of the others only."""
    sparse = Neighbourhood(others=4, needed=3)
    monkeypatch.setattr(key_roster, "choose_neighbourhood", lambda *_: sparse)
    summing = Summing(tmp_path, summed_plan(clients=7, threshold=5))
    summing.grid.lost = partial(is_silent, "unmask", (4,))
    np.testing.assert_array_equal(summing.sum(0).total, summing.true_sum(range(7)))
    assert "confirm" in {wave for _, wave in summing.grid.waves}
    graph = summing.rounds._keys.graph
    for client, prepared in summing.rounds._prepared.items():
        assert list(prepared.letters) == graph.find_neighbours(client)
    summing.grid.lost = partial(is_silent, "mask", (4,))
    opened = summing.sum(1)
    assert set(opened.absent) == {4}
    np.testing.assert_array_equal(opened.total, summing.true_sum(set(range(7)) - {4}))


def test_a_graph_with_too_few_holders_left_loses_the_round_before_anybody_is_asked_to_open_it(
    tmp_path, monkeypatch
) -> None:
    """Clients would refuse such a list of survivors, and note an attack that was none."""
    sparse = Neighbourhood(others=4, needed=4)
    monkeypatch.setattr(key_roster, "choose_neighbourhood", lambda *_: sparse)
    summing = Summing(tmp_path, summed_plan(clients=7, threshold=5))
    assert summing.sum(0).total is not None
    graph = summing.rounds._keys.graph
    silent = next(
        pair
        for pair in combinations(range(7), 2)
        if len(graph.drop_thin(set(range(7)) - set(pair))) < 5
    )
    summing.grid.lost = partial(is_silent, "mask", silent)
    summing.grid.waves.clear()
    lost = summing.sum(1)
    assert lost.total is None
    assert sum_rounds.FEW_HOLDERS in lost.absent.values()
    assert {wave for _, wave in summing.grid.waves} <= {"prepare", "mask"}
    assert [summing.store(client).refusals for client in range(7)] == [[]] * 7


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


@pytest.mark.slow
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
