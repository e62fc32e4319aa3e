"""Drafts of what others file about a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino import Data, train
from sordino.cli.main import run as run_command
from sordino.protocol import View, loads
from sordino.report.filings import TO_FILL, build_registry_entry, write_model_card, write_yaml
from sordino.report.run_summary import summarize_run

TEXT = """
seed = 3
[federation]
clients = 10
rounds = 3
[local]
rule = "fedavg"
steps = 1
batch = 4
clip = 1.0
schedule = { kind = "constant", rate = 0.1 }
[noise]
mechanism = "gaussian"
sigma = 0.3
[data]
name = "digits"
records = 50
[model]
name = "logistic"
"""
# What the registry's schema requires of every entry, and the words that it allows, written down
# here by hand from schemas/deployments-schema.yaml of its repository.
REQUIRED = {
    "name", "data_curators", "description", "intended_use", "data_product_type",
    "data_product_region", "publication_date",
}  # fmt: skip
PARTS = {
    "basic", "dp_variant", "privacy_loss", "deployment_model", "accounting", "implementation",
    "administrative",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "First Run"
    train(loads(TEXT), folder=place, report=False)
    return place


def test_an_entry_has_what_the_registry_requires(folder: Path) -> None:
    summary = summarize_run(folder)
    entry = build_registry_entry(summary, "2026-01-02")
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    assert (entry["url_slug"], entry["status"], entry["tier"]) == ("first_run", "Draft", 3)
    deployment = entry["deployment"]
    assert set(deployment) == PARTS
    assert set(deployment["basic"]) == REQUIRED
    assert deployment["basic"]["data_product_type"] == "Machine learning model"
    assert deployment["deployment_model"]["model_name"] in {"Local", "Central", "Federated"}
    assert deployment["administrative"]["registry_authors"] == [TO_FILL]


def test_an_entry_never_states_less_than_was_spent(folder: Path) -> None:
    summary = summarize_run(folder)
    parameters = build_registry_entry(summary, "2026-01-02")["deployment"]["privacy_loss"]
    stated = parameters["privacy_parameters"]
    spent = summary.main.epsilon(stated["delta"])
    assert spent <= stated["epsilon"] <= 1.02 * spent
    # The seed is known, so the entry must not pass over that.
    entry = build_registry_entry(summary, "2026-01-02")
    assert "seed" in entry["deployment"]["dp_variant"]["unprotected_quantities"]
    assert "seed" in entry["deployment"]["implementation"]["mechanisms"]


def test_the_yaml_reads_back(folder: Path) -> None:
    yaml = pytest.importorskip("yaml")
    entry = build_registry_entry(summarize_run(folder), "2026-01-02")
    assert yaml.safe_load(write_yaml(entry)) == entry


def test_a_model_card_has_every_view_and_what_is_not_protected(folder: Path) -> None:
    summary = summarize_run(folder)
    card = write_model_card(summary)
    for guarantee in summary.guarantees["record"]:
        assert f"| `{guarantee.view}` |" in card
    assert "## Not protected" in card
    assert "Anyone who knows the seed" in card
    assert f"license: {TO_FILL}" in card


def test_a_model_card_says_whose_records_its_results_are_on(folder: Path, tmp_path: Path) -> None:
    def list_results(of: Path) -> str:
        card = write_model_card(summarize_run(of))
        return card[card.index("## Results") : card.index("## Privacy")]

    assert "On public test records:" in list_results(folder)
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y)
    own = replace(
        loads(TEXT), clients=2, data=Data(name=str(tmp_path / "mine.npz"), classes=("no", "yes"))
    )
    train(own, folder=tmp_path / "own", report=False)
    results = list_results(tmp_path / "own")
    assert "On held-out private records, not covered:" in results
    assert "- accuracy:" in results


def test_the_command_writes_both_and_refuses_several_runs(folder: Path, tmp_path, capsys) -> None:
    entry = tmp_path / "entry.yaml"
    card = tmp_path / "card.md"
    command = ["report", str(folder), "--registry", str(entry), "--model-card", str(card)]
    assert run_command(command) == 0
    assert entry.read_text().startswith('url_slug: "first_run"')
    assert card.read_text().startswith("---\n")
    assert run_command(["report", str(folder), str(folder), "--registry", str(entry)]) == 2
    assert "give one folder" in capsys.readouterr().err


def test_a_run_without_a_promise_is_not_registered(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "loud"
    train(loads(TEXT.replace("sigma = 0.3", "sigma = 0.0001")), folder=folder, report=False)
    entry = tmp_path / "entry.yaml"
    assert run_command(["report", str(folder), "--registry", str(entry)]) == 2
    assert "there is no promise to register" in capsys.readouterr().err
    assert not entry.exists()


def test_an_annex_says_what_the_page_says_and_marks_what_only_the_owner_knows(folder: Path) -> None:
    from sordino.report.number_formats import format_upper_bound
    from sordino.report.review_annex import write_annex

    summary = summarize_run(folder)
    text = write_annex(summary)
    delta = summary.headline.delta
    assert summary.main.sentence(delta) in text
    for guarantee in summary.guarantees[summary.headline.unit]:
        assert f"| {format_upper_bound(guarantee.epsilon(delta))} |" in text
    # A known seed undoes the guarantee, so it must not be passed over.
    assert "anyone who knows the seed can remove the noise" in text
    assert "No audit was made" in text
    assert "No attack was tried" in text
    assert "below one in 500 records" in text
    assert text.count(TO_FILL) >= 7


def test_a_simulation_is_not_said_to_leave_records_where_they_are(folder: Path) -> None:
    from sordino.report.review_annex import write_annex

    summary = summarize_run(folder)
    annex = write_annex(summary)
    assert "simulated on one machine" in annex
    assert "did not leave" not in annex
    across = replace(
        summary, run=replace(summary.run, facts={**summary.run.facts, "engine": "flower"})
    )
    assert "which its records did not leave" in write_annex(across)
    assert "simulated" not in write_annex(across)
    # What only the page shows is not a caveat of another document.
    for text in (annex, write_model_card(summary)):
        assert "this page" not in text


def test_an_unscored_model_has_no_scores_and_whole_clients_are_called_clients(folder: Path) -> None:
    from sordino.report.review_annex import write_annex
    from sordino.report.run_prices import Headline

    summary = summarize_run(folder, Headline(View.SERVER, "client", 1e-5))
    metrics = {**summary.run.metrics}
    for name in ("accuracy", "loss"):
        metrics[name] = np.full(len(metrics["round"]), np.nan)
    summary = replace(summary, run=replace(summary.run, metrics=metrics))
    card = write_model_card(summary)
    annex = write_annex(summary)
    assert "- not scored" in card
    assert ": not scored." in annex
    assert "nan" not in card + annex
    assert "whether a client took part" in annex
    assert "k records of one person" not in annex


def test_the_command_writes_every_filing_asked_for(folder: Path, tmp_path, capsys) -> None:
    annex = tmp_path / "annex.md"
    card = tmp_path / "card.md"
    assert (
        run_command(["report", str(folder), "--annex", str(annex), "--model-card", str(card)]) == 0
    )
    assert annex.read_text().startswith("# Annex on privacy: First Run")
    assert card.exists()
    assert run_command(["report", str(folder), str(folder), "--annex", str(annex)]) == 2
