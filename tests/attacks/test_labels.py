"""Labels from uploads: exact where theory says so, near guessing under strong noise, on real digits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from sordino import Constant, FedAvg, Run
from sordino.attacks.labels import (
    SETTINGS,
    count_by_magnitudes,
    count_by_mixture,
    estimate_class_gradients,
    read_last_layer,
    round_shares,
    uninformed_overlap,
)
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from tests.attacks.conftest import STRONG


@pytest.mark.soak
def test_without_noise_labels_are_named_and_under_strong_noise_they_are_guessed(trained) -> None:
    """Margins: best method at least 0.45 above guessing in every round without noise, within 0.12 of it under sigma = 1."""
    clear, noisy = (attack(trained("mnist", sigma=sigma), "labels").rows for sigma in (0.0, STRONG))
    for t in {row.round for row in clear}:
        best = max((row for row in clear if row.round == t), key=lambda row: row.value)
        assert best.value > best.baseline + 0.45, best
    for method in ("magnitudes", "mixture", "optimised"):
        rows = [row for row in noisy if row.method == method]
        mean, trivial = (
            np.mean([getattr(row, name) for row in rows]) for name in ("value", "baseline")
        )
        assert abs(mean - trivial) < 0.12, method


def counted(
    run: Run, t: int, uploads: int = 6
) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """The true counts of some uploads' labels, and what every method says."""
    referee, plan = Referee(run), replace(SETTINGS["quick"], iterations=100)
    federation = referee.public_federation(500)
    found = [
        plan.attempt(referee.observe_upload(federation, t, place), lambda share: None)
        for place in range(uploads)
    ]
    return [
        np.bincount(referee.reveal_batch(t, place).labels, minlength=10) for place in range(uploads)
    ], found


def share_named(true: list[np.ndarray], found: list[dict[str, np.ndarray]], method: str) -> float:
    return float(
        np.mean(
            [
                np.minimum(one, guess[method]).sum() / one.sum()
                for one, guess in zip(true, found, strict=True)
            ]
        )
    )


@pytest.mark.slow
def test_optimising_finds_labels_that_class_means_miss(trained) -> None:
    """Once the model has learnt, probabilities depend on the record: on this run it names at least a twentieth more."""
    true, found = counted(trained("mnist", sigma=0.0, rounds=21), 20, uploads=10)
    assert share_named(true, found, "optimised") > share_named(true, found, "mixture") + 0.05


@pytest.mark.slow
def test_the_label_of_a_single_record_is_always_named(trained) -> None:
    """iDLG: only the row of the label is negative, whatever the model."""
    referee = Referee(trained("mnist", sigma=0.0, batch=1))
    federation = referee.public_federation(300)
    for t, place in itertools.product(referee.kept, range(10)):
        seen, true = (
            referee.observe_upload(federation, t, place),
            int(referee.reveal_batch(t, place).labels),
        )
        assert count_by_mixture(read_last_layer(seen)).argmax() == true
        assert count_by_magnitudes(seen).argmax() == true


@pytest.mark.slow
def test_labels_of_several_steps_are_counted_together(trained) -> None:
    """Margin: 0.2 above the 0.75 or so that are right in 12 labels when every class is named once or twice."""
    steps = FedAvg(steps=3, batch=4, clip=10.0, schedule=Constant(rate=0.01))
    true, found = counted(trained("mnist", sigma=0.0, local=steps), 0)
    assert all(one.sum() == 12 for one in true)
    assert (
        share_named(true, found, "optimised")
        > np.mean([uninformed_overlap(one) for one in true]) + 0.2
    )


@pytest.mark.slow
def test_a_clipped_gradient_still_names_its_labels(trained) -> None:
    """A clip of 0.01 leaves about a hundredth of a gradient, and nobody says which hundredth."""
    tight = FedAvg(steps=1, batch=4, clip=0.01, schedule=Constant(rate=0.1))
    true, found = counted(trained("mnist", sigma=0.0, local=tight), 15)
    assert min(share_named(true, found, method) for method in ("mixture", "optimised")) > 0.9


@pytest.mark.slow
def test_mean_gradients_of_classes_are_those_of_autograd(trained) -> None:
    referee = Referee(trained("mnist", sigma=0.0))
    federation = referee.public_federation(60)
    known = read_last_layer(referee.observe_upload(federation, 5, 0))
    means, _ = estimate_class_gradients(known)
    weight, bias = (part.clone().requires_grad_() for part in known.last.split_vector(known.model))
    for label in range(10):
        rows = known.labels == label
        loss = functional.cross_entropy(
            known.embeddings[rows] @ weight.T + bias, known.labels[rows]
        )
        expected = torch.cat(
            [part.reshape(10, -1) for part in torch.autograd.grad(loss, [weight, bias])], dim=1
        )
        np.testing.assert_allclose(means[label].reshape(10, -1), expected.numpy(), atol=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.integers(1, 100))
def test_shares_become_whole_numbers_that_add_up(shares, total) -> None:
    counts = round_shares(np.array(shares), total)
    assert counts.sum() == total
    assert (counts >= 0).all()
    positive = np.maximum(shares, 0)
    if positive.sum() > 0:
        assert (np.abs(counts - positive / positive.sum() * total) < 1 + 1e-9).all()


@pytest.mark.parametrize("true", [(4, 0, 0), (2, 1, 1), (0, 5, 2), (1, 0, 0), (3, 3, 3)])
def test_guessing_all_classes_equally_often_is_right_as_often_as_enumeration_says(true) -> None:
    total, classes = sum(true), len(true)
    each, left = divmod(total, classes)
    guesses = [
        [each + (label in extra) for label in range(classes)]
        for extra in itertools.combinations(range(classes), left)
    ]
    overlap = np.mean(
        [sum(min(a, b) for a, b in zip(guess, true, strict=True)) for guess in guesses]
    )
    assert uninformed_overlap(np.array(true)) == pytest.approx(overlap / total)
