"""A page says whose records the model was scored on, and that scores on private ones are not covered."""

import json
from pathlib import Path

import numpy as np
import pytest

from sordino.audit.audit_subject import certify_subject, load_subject
from sordino.cli.main import run as command_line
from sordino.engines import train
from sordino.explorer.watching import RunWatcher, price_folder, title_scores
from sordino.federation.store.run import Run
from sordino.privacy.certify import certify
from sordino.protocol import Constant, Data, Dirichlet, FedAvg, Gaussian, Model, Protocol, Shards
from sordino.report.caveats import list_caveats
from sordino.report.closing_panel import result_line
from sordino.report.comparison import comparison_page, summarize_runs
from sordino.report.phrasing import find_test_source as whose
from sordino.report.run_summary import run_document, summarize_run, summary_document
from sordino.report.tiles import show_score
from tests.support import toy_dataset, toy_protocol, unseal_scores


def trained(folder: Path, **data: object) -> Run:
    protocol = Protocol(
        clients=2, rounds=1, seed=1, noise=Gaussian(sigma=1.0), model=Model(name="logistic"),
        local=FedAvg(steps=1, batch=2, clip=1.0, schedule=Constant(rate=0.1)), data=Data(**data),
    )  # fmt: skip
    return train(protocol, folder=folder / "run", workers=1)


def own(folder: Path, **more: np.ndarray) -> dict[str, object]:
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    np.savez(folder / "mine.npz", x_train=x, y_train=y, **more)
    return {"name": str(folder / "mine.npz"), "classes": ("no", "yes")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["public", "brought", "held-out", "none"])
def test_whose_records_were_scored_is_said_everywhere(tmp_path: Path, kind: str) -> None:
    brought = {"x_test": np.ones((9, 3)), "y_test": np.arange(9) % 2}
    settings = {
        "public": lambda: {"name": "digits"},
        "brought": lambda: own(tmp_path, **brought),
        "held-out": lambda: own(tmp_path),
        "none": lambda: {**own(tmp_path), "test": "none"},
    }
    run = trained(tmp_path, **settings[kind]())
    document, page = run_document(run), (run.folder / "report.html").read_text()
    assert (document["tested_on"], document["scores_covered"]) == (
        kind,
        kind in ("public", "none"),
    )
    grave = [limit.title for limit in list_caveats(summarize_run(run)) if limit.grave]
    assert ("Scores on private records" in grave) == (kind == "held-out")
    assert ("Scores on private records" in page) == (kind == "held-out")
    assert ("on public test records" in page.lower()) == (kind == "public")
    assert ("not covered" in result_line(run)) == (kind == "held-out")
    assert "Test records are public" not in page
    if kind == "none":
        assert show_score(summarize_run(run)).number == "not scored"
        assert (sum(run.sizes), run.facts["test_records"]) == (60, 0)


@pytest.mark.slow
def test_a_page_about_own_files_does_not_count_their_labels(tmp_path: Path) -> None:
    run = trained(tmp_path, **own(tmp_path))
    counts = json.loads((run.folder / "partition.json").read_text())["counts"]
    page = (run.folder / "report.html").read_text()
    assert np.array(counts).sum() == sum(run.sizes)
    assert summary_document(summarize_run(run))["partition"] is None
    assert "figure-partition" not in page
    assert "Which client has which labels is private, and left out" in page
    public = trained(tmp_path / "public", name="digits")
    assert summary_document(summarize_run(public))["partition"] is not None
    assert "figure-partition" in (public.folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Dirichlet(beta=0.5), Shards(per_client=2)])
def test_a_promise_about_records_dealt_by_label_says_so(tmp_path: Path, kind: object) -> None:
    run = trained(tmp_path, name="digits", partition=kind)
    guarantee = certify(run.protocol, "server", "record", sizes=list(run.sizes))
    assert "assigned to clients by label" in json.dumps(guarantee.as_document(1e-5)["notes"])
    assert "assigned to clients by label" in (run.folder / "report.html").read_text()
    assert "assigned to clients by label" in json.dumps(run_document(run)["guarantee"])
    iid = trained(tmp_path / "iid", name="digits")
    assert certify(iid.protocol, "server", sizes=list(iid.sizes)).notes == ()


def as_earlier_versions_wrote(run: Run) -> Run:
    """The same run, without what run.json did not say before records were held out by their places."""
    path = run.folder / "run.json"
    facts = json.loads(path.read_text())
    del facts["tested_on"]
    del facts["test_records"]
    path.write_text(json.dumps(facts))
    unseal_scores(run.folder)
    return Run.load(run.folder)


@pytest.mark.slow
def test_an_earlier_run_on_own_data_is_said_to_be_divided_by_label(tmp_path: Path, capfd) -> None:
    run = as_earlier_versions_wrote(trained(tmp_path, **own(tmp_path)))
    folder, said = str(run.folder), "promise does not cover that division. Train again"
    assert said in run.guarantee("final").sentence(1e-5)
    assert said in json.dumps(run_document(run))
    grave = [limit.title for limit in list_caveats(summarize_run(run)) if limit.grave]
    assert "Records that were divided by label" in grave
    assert said in comparison_page(summarize_runs([folder, folder]))
    assert said in price_folder(run.folder, 1).notes[0]
    assert said in certify_subject(load_subject(run.folder), "server", "record", 1e-5).notes[0]
    for command in (["certify", folder], ["certify", folder, "--json"], ["verify", folder]):
        command_line(command)
        # verify prints a table, which breaks lines within a cell.
        assert said in " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert command_line(["report", folder]) == 0
    assert said in " ".join((run.folder / "report.html").read_text().split())


@pytest.mark.parametrize("kind", ["this version", "published", "in python"])
def test_other_runs_are_not_said_to_be_divided_by_label(tmp_path: Path, kind: str) -> None:
    if kind == "this version":
        run = trained(tmp_path, **own(tmp_path))
    if kind == "published":
        run = as_earlier_versions_wrote(trained(tmp_path, name="digits"))
    if kind == "in python":
        handed = train(
            toy_protocol(), data=toy_dataset(), model="logistic", folder=tmp_path / "run", workers=1
        )
        run = as_earlier_versions_wrote(handed)
    assert run.guarantee("server").notes == ()
    assert whose(run) == {"this version": "held-out", "published": "public"}.get(kind, "brought")


@pytest.mark.slow
def test_a_comparison_says_whose_records_were_scored(tmp_path: Path) -> None:
    mine = trained(tmp_path, **own(tmp_path))
    public = trained(tmp_path / "public", name="digits")
    page = comparison_page(summarize_runs([mine.folder, public.folder]))
    assert "Scored on held-out private records, not covered or public test records." in page
    assert "on test records" not in page
    seen = [RunWatcher(tmp_path).look("run"), RunWatcher(tmp_path / "public").look("run")]
    assert title_scores(seen[:1], "loss") == "Loss on held-out private records, not covered"
    assert title_scores(seen[1:], "accuracy") == "Accuracy on public test records"
