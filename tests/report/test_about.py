"""Owner, purpose and names on the page and in filings; derivations once; published deployments."""

import json

import pytest
from typer.testing import CliRunner

from sordino import Constant, FedAvg, Gaussian, Protocol, train
from sordino.cli.main import app
from sordino.protocol import InvalidValue, UserError
from sordino.report.about import About, keep_about, read_about
from sordino.report.deployments import DEPLOYMENTS
from sordino.report.page import list_derivations
from sordino.report.phrasing import describe_protocol
from sordino.report.run_summary import summarize_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    plan = Protocol(seed=1, clients=5, rounds=2, local=rule, noise=Gaussian(sigma=0.2))
    out = tmp_path_factory.mktemp("about") / "run"
    return train(plan, data="digits", model="logistic", folder=out, report=False)


def test_what_is_said_stands_on_the_page_and_in_every_filing(run) -> None:
    folder = str(run.folder)
    ask = CliRunner()
    said = ["--owner", "St. Mary's <b>", "--purpose", "Triage | study 12", "--names", "A. and B."]
    assert ask.invoke(app, ["report", folder, *said]).exit_code == 0
    page = (run.folder / "report.html").read_text()
    assert "St. Mary&#39;s &lt;b&gt;" in page
    assert page.index("Triage | study 12") < page.index("What each adversary learns")
    annex, card = run.folder.parent / "annex.md", run.folder.parent / "entry.yaml"
    filed = ask.invoke(app, ["report", folder, "--annex", str(annex), "--registry", str(card)])
    assert filed.exit_code == 0
    assert "| purpose | Triage \\| study 12 |" in annex.read_text()
    assert "A. and B." in card.read_text()
    # A later word changes one and keeps the others.
    keep_about(run.folder, names="C.")
    assert read_about(run.folder) == About(
        owner="St. Mary's <b>", purpose="Triage | study 12", names="C."
    )
    assert json.loads((run.folder / "about.json").read_text())["names"] == "C."


def test_wrong_words_are_refused_and_nothing_is_written(run) -> None:
    before = read_about(run.folder)
    for wrong in ("two\nlines", "\x1b[31m", "a" * 501):
        with pytest.raises(InvalidValue, match="owner"):
            keep_about(run.folder, owner=wrong)
    assert read_about(run.folder) == before
    answer = CliRunner().invoke(app, ["report", "nowhere", "--owner", "x"])
    assert isinstance(answer.exception, UserError)
    (run.folder / "about.json").write_text('{"owner": 1}')
    with pytest.raises(UserError, match="owner"):
        read_about(run.folder)
    (run.folder / "about.json").unlink()


def test_every_derivation_stands_once_and_every_view_has_one(run) -> None:
    summary = summarize_run(run.folder)
    derivations = list_derivations(summary)
    views = [view for one in derivations for view, _ in one["views"]]
    assert len(views) == sum(len(found) for found in summary.guarantees.values())
    keys = [(one["title"], tuple(one["lines"])) for one in derivations]
    assert len(keys) == len(set(keys))
    said = {line for one in derivations for line in one["lines"]}
    said |= {first for one in derivations for _, first in one["views"]}
    for guarantees in summary.guarantees.values():
        for guarantee in guarantees:
            assert set(guarantee.derivation) <= said


def test_deployments_have_sources() -> None:
    assert all(one.source.startswith("https://") for one in DEPLOYMENTS)
    assert {one.trusted for one in DEPLOYMENTS} == {"local", "central"}


@pytest.mark.parametrize(
    ("clients", "rounds", "counted"),
    [
        (1, 1, "1 client, 1 round of Noisy-FedAvg"),
        (1200, 2, "1,200 clients, 2 rounds of Noisy-FedAvg"),
    ],
)
def test_a_single_round_is_described_in_the_singular(clients, rounds, counted) -> None:
    rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    plan = Protocol(seed=1, clients=clients, rounds=rounds, local=rule, noise=Gaussian(sigma=0.2))
    assert describe_protocol(plan) == f"? on ?, {counted}"
