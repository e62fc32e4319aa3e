"""Personal models are scored round by round, each on records with its client's labels, and marked as not covered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino import Interpolate, Run, sweep, train
from sordino.data import client_tests, load_dataset
from sordino.data.partition import draw_client_tests, partition
from sordino.federation.evaluation import evaluate_clients
from sordino.privacy.guarantee import format_delta
from sordino.privacy.published import find_withheld
from sordino.protocol import Budget, Data, FixedSize, Privacy, Shards
from sordino.randomness import Key
from sordino.report.closing_panel import summary
from sordino.report.comparison import comparison_page, summarize_runs
from sordino.report.page import run_page
from sordino.report.run_summary import find_own_scores, run_document, summarize_run
from sordino.report.sweep_tables import sweep_csv, sweep_table
from tests.support import toy_dataset, toy_protocol


def keeping_models(**changes: object):
    """A federation whose clients keep models, three of five in a round."""
    settings = {
        "personalization": Interpolate(alpha=0.1),
        "participation": FixedSize(size=3),
        "data": Data(name="toy", partition=Shards(per_client=2), records=20),
    }
    return toy_protocol(**{**settings, **changes})


@pytest.fixture(scope="module", params=["torch", "native"])
def run(tmp_path_factory, request) -> Run:
    place = tmp_path_factory.mktemp("own") / request.param
    return train(
        keeping_models(),
        data=toy_dataset(),
        model="logistic",
        folder=place,
        workers=1,
        engine=request.param,
        evaluate_every=2,
        report=False,
    )


def test_the_last_scores_are_those_of_the_models_on_disk(run) -> None:
    """The files are scored one by one, with weights and records found without the scorer."""
    data = toy_dataset()
    key = Key.from_seed(run.protocol.seed)
    parts = partition(data, run.protocol.data, run.protocol.clients, key)
    found = []
    for client, rows in enumerate(client_tests(data, parts, key, 200)):
        model = run.client_model(client) if client in run.personal else run.model
        with torch.no_grad():
            answers = model(torch.from_numpy(data.x_test[rows])).argmax(dim=1).numpy()
        found.append((answers == data.y_test[rows]).mean())
    assert run.metrics["own_accuracy"][-1] == pytest.approx(np.mean(found))
    assert run.metrics["own_worst"][-1] == pytest.approx(min(found))
    assert run.metrics["own_spread"][-1] == pytest.approx(np.std(found))
    assert np.mean(found) == pytest.approx(evaluate_clients(run, data, personal=True).mean())
    # Not the global model under another name.
    assert np.mean(found) != pytest.approx(evaluate_clients(run, data).mean())


def test_rounds_that_are_not_scored_have_none(run) -> None:
    assert np.isnan(run.metrics["own_accuracy"]).tolist() == [True, False, True, False]


def test_runs_without_own_models_have_no_such_metrics(tmp_path) -> None:
    plain = train(
        toy_protocol(), data=toy_dataset(), model="logistic", folder=tmp_path / "a", report=False
    )
    assert np.isnan(plain.metrics["own_accuracy"]).all()
    assert "own_" not in (plain.folder / "metrics.jsonl").read_text()
    assert find_own_scores(plain) is None
    assert run_document(plain)["own_models"] is None


def test_summary_report_and_json_show_them_as_not_covered(run) -> None:
    mean = f"{100 * run.metrics['own_accuracy'][-1]:.1f} %"
    worst = f"{100 * run.metrics['own_worst'][-1]:.1f} %"
    panel = "".join(str(cell) for cell in summary(run).renderable.columns[1].cells)
    page = run_page(summarize_run(run))
    for text in (panel, page):
        assert f"accuracy {mean} on average, {worst} at the worst client" in text
        assert "not covered by any guarantee" in text
    assert run_document(run)["own_models"]["covered"] is False
    assert "The scores of clients&#39; personal models" in page


def test_the_comparison_has_a_column_and_names_the_view_of_budgets(run, tmp_path) -> None:
    budget = Privacy(budget=Budget(epsilon=900.0, delta=1e-4, view="rounds"))
    other = train(
        keeping_models(privacy=budget, seed=4),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "other",
        report=False,
    )
    page = comparison_page(summarize_runs([run.folder, other.folder]))
    assert "personal models: mean, worst, spread (not covered)" in page
    for one in (run, other):
        assert f"{100 * one.metrics['own_accuracy'][-1]:.1f} %, " in page
    assert f"ε = 900 at δ = {format_delta(1e-4)} in the view rounds, about one record." in page
    plain = [
        train(
            toy_protocol(seed=seed),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / f"plain-{seed}",
            report=False,
        )
        for seed in (1, 2)
    ]
    assert "personal models" not in comparison_page(summarize_runs([one.folder for one in plain]))


def test_a_promise_about_the_last_model_withholds_them(tmp_path) -> None:
    budget = Privacy(budget=Budget(epsilon=900.0, delta=1e-4, view="final"))
    run = train(
        keeping_models(privacy=budget),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "final",
        report=False,
    )
    assert find_withheld(run.protocol).scores
    assert find_own_scores(run) is None
    assert '"own_accuracy":null' in (run.folder / "metrics.jsonl").read_text().replace(" ", "")


def test_a_sweep_shows_them_unless_it_is_priced(tmp_path) -> None:
    grid = {"local.clip": [0.5, 1.0]}
    data = replace(toy_dataset(), test="public")
    swept = sweep(
        keeping_models(), grid, data=data, model="logistic", folder=tmp_path / "sweep", workers=1
    )
    for row, one in zip(swept.rows, swept.summary, strict=True):
        trained = Run.load(row.run)
        assert row.own_accuracy == trained.metrics["own_accuracy"][-1] == one.own_mean
        assert row.own_worst == one.own_worst <= row.own_accuracy
    heads = [str(column.header) for column in sweep_table(swept).columns]
    assert "personal models, mean (not covered)" in heads
    assert sweep_csv(swept).splitlines()[0].endswith("own_accuracy,own_worst,own_spread")
    assert any("no epsilon covers them" in note for note in swept.notes)
    priced = sweep(
        keeping_models(),
        grid,
        data=data,
        model="logistic",
        folder=tmp_path / "priced",
        workers=1,
        price="sum",
    )
    assert all(row.own_accuracy is None for row in priced.rows)


def test_clients_without_testable_labels_have_no_records() -> None:
    counts = np.array([[3, 0, 0], [0, 0, 4], [1, 1, 2]])
    labels = np.array([0, 1, 1, 0])
    tests = draw_client_tests(counts, labels, Key.from_seed(1), size=50)
    assert [len(rows) for rows in tests] == [50, 0, 50]
    assert set(labels[tests[0]]) == {0}


def test_client_tests_draw_as_ever() -> None:
    """Scores of seeded runs are compared across versions: the draw is pinned."""
    digits = load_dataset("digits")
    rows = client_tests(digits, (np.arange(30), np.arange(50, 90)), Key.from_seed(7), size=6)
    assert [one.tolist() for one in rows] == [
        [96, 193, 205, 218, 254, 288],
        [39, 100, 134, 157, 283, 354],
    ]
