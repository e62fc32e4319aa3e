"""A training that taught its model nothing says so, at its end and in the report; one that did says nothing."""

from __future__ import annotations

import pytest
from rich.console import Console

from sordino import Constant, FedAvg, Gaussian, NoisySgd, Staircase, train
from sordino.report import learning
from sordino.report.closing_panel import summary
from sordino.report.learning import find_warnings
from tests.support import toy_dataset, toy_protocol

STEPS = {"steps": 3, "batch": 6, "clip": 1.0, "schedule": Constant(rate=0.3)}
UPLOADS = {"local": FedAvg(**STEPS)}
IN_STEPS = {"local": NoisySgd(**STEPS, sampling="poisson")}
LOUD = {
    "noise on uploads": {**UPLOADS, "noise": Gaussian(sigma=50.0)},
    "noise in steps": {**IN_STEPS, "noise": Gaussian(multiplier=300.0)},
    "staircase in steps": {**IN_STEPS, "noise": Staircase(step=0.002, width=1.0)},
}
QUIET = {
    "noise on uploads": {**UPLOADS, "noise": Gaussian(sigma=0.01)},
    "noise in steps": {**IN_STEPS, "noise": Gaussian(multiplier=0.2)},
}


def trained(changes, folder, **options):
    protocol = toy_protocol(rounds=6, **changes)
    return train(protocol, data=toy_dataset(), model="mlp", folder=folder, workers=1, **options)


@pytest.mark.parametrize("changes", LOUD.values(), ids=LOUD.keys())
def test_a_model_that_learned_nothing_is_said_to_be_so(changes, tmp_path) -> None:
    run = trained(changes, tmp_path / "run", report=True)
    assert run.status == "finished"
    worse, drowned = find_warnings(run)
    assert "got worse" in worse
    assert "noise hides" in drowned
    console = Console(record=True, width=200)
    console.print(summary(run))
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (console.export_text(), page):
        assert "got worse" in text
        assert "noise hides" in text


@pytest.mark.parametrize("changes", QUIET.values(), ids=QUIET.keys())
def test_a_model_that_learned_is_not(changes, tmp_path) -> None:
    run = trained(changes, tmp_path / "run", report=False)
    assert run.facts["start_accuracy"] < run.metrics["accuracy"][-1]
    assert find_warnings(run) == []


def test_what_was_not_scored_is_not_judged(tmp_path) -> None:
    run = trained(QUIET["noise in steps"], tmp_path / "run", report=False, evaluate_every=0)
    assert "start_loss" not in run.facts
    assert find_warnings(run) == []


def test_scores_overrule_the_estimate_of_the_noise(tmp_path, monkeypatch) -> None:
    run = trained(QUIET["noise in steps"], tmp_path / "run", report=False)
    # As if the noise were too much for any gradients.
    monkeypatch.setattr(learning, "LEAST_OF_STEPS", 1e9)
    assert learning.bound_step_signal(run.protocol, run.facts["parameters"], 6) < 1e9
    assert find_warnings(run) == []
    monkeypatch.setattr(learning, "LEARNED", 0.0)
    assert len(find_warnings(run)) == 1
