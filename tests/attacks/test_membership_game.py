"""What membership inference finds never exceeds what is certified; where the noise is not what was certified, the game notices."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

from experiments.membership import detected_game
from experiments.membership_game import (
    CONFIDENCE,
    RATES,
    MembershipGame,
    RecordScorer,
    find_detections,
    play_game,
)
from sordino import Gaussian, UserError, View, certify
from sordino.audit.lower_bounds import Scores
from sordino.engines.many_trainings import train_many
from sordino.privacy.curves.gaussian_curve import GaussianCurve


def with_trainings(trainings: int, share: float = 1.0) -> tuple[MembershipGame, Scores]:
    """The game with a share of the noise that is certified."""
    game = detected_game(trainings)
    sigma = share * game.protocol.noise.sigma
    return game, play_game(game, protocol=replace(game.protocol, noise=Gaussian(sigma=sigma)))


@pytest.mark.slow
def test_detection_stays_under_the_certified_curve() -> None:
    """It is no empty test: the record is found clearly more often than by guessing."""
    game, scores = with_trainings(150)
    found = find_detections(scores, game.certify_game())
    assert [one.aimed for one in found] == list(RATES)
    assert not any(one.refuted for one in found)
    assert all(one.detected <= one.allowed for one in found)
    assert found[0].detected > found[0].limits.false_positive + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("share", [1 / 3, 0.0])
def test_a_third_of_the_noise_or_none_is_noticed(share) -> None:
    game, scores = with_trainings(60, share)
    assert any(one.refuted for one in find_detections(scores, game.certify_game()))


def test_the_game_is_held_against_what_is_promised_of_a_record_to_who_sees_the_last_model() -> None:
    game = detected_game(10)
    promise, held = certify(game.protocol, "final", "record"), game.certify_game()
    assert (held.view, held.unit) == (promise.view, promise.unit) == (View.FINAL, "record")
    assert [held.curve.beta(alpha) for alpha in RATES] == [
        promise.curve.beta(alpha) for alpha in RATES
    ]


def test_limits_are_those_of_clopper_and_pearson_on_the_judging_half() -> None:
    """The upper limit is the rate at which so few errors have probability 0.05 %; thresholds come from the choosing half alone."""
    generator = np.random.default_rng(2)
    scores = Scores(
        choosing=(generator.normal(size=500), generator.normal(size=500)),
        judging=(generator.normal(size=400), generator.normal(size=400) + 2),
    )
    curve = GaussianCurve(mu=1.0)
    game = detected_game(10)
    for found in find_detections(scores, replace(game.certify_game(), curve=curve)):
        threshold = np.sort(scores.choosing[0])[int(np.ceil((1 - found.aimed) * 499))]
        alarms, missed = (
            (scores.judging[0] > threshold).sum(),
            (scores.judging[1] <= threshold).sum(),
        )
        assert binom.cdf(alarms, 400, found.limits.false_positive) == pytest.approx(
            (1 - CONFIDENCE) / 2, rel=1e-6
        )
        assert binom.cdf(missed, 400, 1 - found.detected) == pytest.approx(
            (1 - CONFIDENCE) / 2, rel=1e-6
        )
        assert found.allowed == pytest.approx(
            norm.cdf(norm.ppf(found.limits.false_positive) + 1.0), abs=1e-9
        )


def test_a_score_is_how_much_surer_a_model_is_of_the_record_than_of_the_other() -> None:
    game = detected_game(10)
    [trained] = train_many([replace(game.protocol, seed=5)], data=game.data, model=game.module)
    weight, bias = (
        trained.state[name].double().numpy() for name in sorted(trained.state, reverse=True)
    )
    x = game.data.x_train[0].astype(float) * game.data.scale + game.data.shift
    logits = weight @ x + bias
    right = int(game.data.y_train[0])
    assert RecordScorer(game).score_model(trained) == pytest.approx(
        2 * (logits[right] - logits[1 - right]), rel=1e-5
    )


def test_a_record_that_may_be_nobodys_is_refused() -> None:
    game = detected_game(10)
    with pytest.raises(UserError, match="must hold the record in question"):
        replace(game, protocol=replace(game.protocol, clients=3))
