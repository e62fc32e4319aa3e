"""Images from uploads and from answers: near the originals without noise, no nearer than the mean image under strong noise."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sordino import Constant, FedAvg, FedProx, UserError
from sordino.attacks.image_similarity import (
    Reconstruction,
    match_images,
    measure_images,
    refuse_other_than_images,
    score_images,
)
from sordino.attacks.inversion import SETTINGS, UpdateSimulator, image_variation
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from tests.attacks.conftest import STRONG


def by_metric(rows) -> dict[tuple[str, int], object]:
    return {(row.metric, row.round): row for row in rows}


@pytest.mark.soak
def test_digits_are_seen_without_noise_and_not_under_strong_noise(trained) -> None:
    """Margins: without noise a squared error below half of the mean image's and SSIM at least 0.3 above it; under sigma = 1 none better."""
    clear, noisy = (
        by_metric(attack(trained("mnist", sigma=sigma), "inversion").rows)
        for sigma in (0.0, STRONG)
    )
    for t in (0, 19):
        assert clear["MSE", t].value < 0.5 * clear["MSE", t].baseline
        assert clear["SSIM", t].value > clear["SSIM", t].baseline + 0.3
        assert noisy["MSE", t].value > noisy["MSE", t].baseline
        assert noisy["SSIM", t].value < noisy["SSIM", t].baseline + 0.02


@pytest.mark.slow
def test_the_pictures_are_kept_and_drawn(trained) -> None:
    run = trained("mnist", sigma=0.0)
    finding = attack(run, "inversion")
    [(noise, cases)] = finding.cases
    assert noise == 0
    assert {images.shape for _, result in cases for images in result.pictures.values()} == {
        (4, 1, 28, 28)
    }
    for name in ("inversion.json", "inversion.png", "inversion-pictures.png"):
        assert (run.folder / "attacks" / name).stat().st_size > 0


@pytest.mark.parametrize(
    "rule",
    [
        FedAvg(steps=1, batch=4, clip=10.0, schedule=Constant(rate=0.1)),
        FedAvg(steps=3, batch=2, clip=0.5, schedule=Constant(rate=0.1)),
        FedProx(steps=3, batch=2, clip=10.0, proximal=2.0, schedule=Constant(rate=0.1)),
    ],
    ids=["one step", "clipped steps", "fedprox"],
)
def test_the_steps_that_are_replayed_are_those_of_the_client(trained, rule) -> None:
    """On the true records, in the order in which they were drawn, the replay gives the upload's direction; on others it does not."""
    referee = Referee(trained("mnist", sigma=0.0, rounds=3, local=rule))
    federation = referee.public_federation(50)
    seen, true = referee.observe_upload(federation, 2, 1), referee.reveal_batch(2, 1)
    assert UpdateSimulator(seen, true.labels).measure_distance(true.inputs).item() < 1e-5
    assert (
        UpdateSimulator(seen, true.labels)
        .measure_distance(federation.auxiliary.inputs[: len(true.labels)])
        .item()
        > 0.05
    )


def test_reconstructions_are_matched_as_favours_the_attacker_most() -> None:
    generator = np.random.default_rng(0)
    made, true = generator.random((2, 5, 1, 4, 4))
    best = min(
        itertools.permutations(range(5)),
        key=lambda order: np.square(made[list(order)] - true).sum(),
    )
    np.testing.assert_array_equal(match_images(made, true), made[list(best)])


def test_measures_are_what_their_names_say() -> None:
    generator = np.random.default_rng(0)
    made, true = generator.random((2, 3, 3, 9, 9))
    found = measure_images(made, true)
    squares = [np.mean((a - b) ** 2) for a, b in zip(made, true, strict=True)]
    assert found["MSE"] == pytest.approx(np.mean(squares))
    assert found["PSNR"] == pytest.approx(np.mean([-10 * np.log10(square) for square in squares]))
    assert found["L2"] == pytest.approx(
        np.mean([np.linalg.norm(a - b) for a, b in zip(made, true, strict=True)])
    )
    assert found["MAE"] == pytest.approx(np.abs(made - true).mean())
    same = measure_images(true, true)
    assert (same["MSE"], same["PSNR"], same["SSIM"]) == (0.0, 100.0, pytest.approx(1.0))


def test_who_says_the_mean_image_gets_the_baseline() -> None:
    own = ObservedRecords(
        inputs=torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
        labels=torch.zeros(20),
    )
    guess = Reconstruction.of(own.inputs.mean(dim=0, keepdim=True).expand(4, -1, -1, -1), own)
    for measure in score_images(guess, own.inputs[:4], ordered=False).measures:
        assert measure.value == pytest.approx(measure.baseline)


def test_variation_is_the_sum_over_neighbours() -> None:
    image = torch.rand(2, 3, 5, 4, dtype=torch.float64)
    down = np.mean(
        [abs(image[i, c, y + 1, x] - image[i, c, y, x]) for i, c, y, x in np.ndindex(2, 3, 4, 4)]
    )
    across = np.mean(
        [abs(image[i, c, y, x + 1] - image[i, c, y, x]) for i, c, y, x in np.ndindex(2, 3, 5, 3)]
    )
    assert image_variation(image).item() == pytest.approx(down + across)


@pytest.mark.slow
def test_too_many_images_in_an_update_and_records_that_are_none_are_refused(trained) -> None:
    many = FedAvg(steps=6, batch=20, clip=10.0, schedule=Constant(rate=0.1))
    with pytest.raises(UserError, match="mixes 6 x 20 images"):
        SETTINGS["quick"].cases(Referee(trained("mnist", sigma=0.0, rounds=1, local=many)))
    for small in ((1, 1, 1), (1, 2, 2), (3, 1, 40)):
        with pytest.raises(UserError, match="3 by 3"):
            refuse_other_than_images(
                SimpleNamespace(
                    protocol=SimpleNamespace(data=None),
                    dataset=SimpleNamespace(name="x", input_shape=small),
                )
            )
    with pytest.raises(UserError, match="reconstructs images"):
        SETTINGS["quick"].cases(Referee(trained("adult", sigma=0.0, rounds=1)))


@pytest.mark.soak
def test_answers_give_images_away_and_more_so_after_training(trained) -> None:
    """Margins: squared error below 0.65 of the mean image's after training without noise, and below that of the untrained model;

    under sigma = 1 above that of the untrained model, whose answers tell of the record too.
    """
    clear, noisy = (
        by_metric(attack(trained("mnist", sigma=sigma), "reconstruction").rows)
        for sigma in (0.0, STRONG)
    )
    after, before = clear["MSE", 20], clear["MSE", 0]
    assert after.value < 0.65 * after.baseline
    assert after.value < 0.95 * before.value
    assert noisy["MSE", 20].value > before.value
