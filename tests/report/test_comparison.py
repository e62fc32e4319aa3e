"""Several runs side by side: the same adversary for all, what they reveal together, what differs."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from sordino import Gaussian, certify, train
from sordino.cli.main import run
from sordino.explorer.watching import price_folder
from sordino.protocol import Assumptions, Budget, Privacy, StageWise, View
from sordino.report.comparison import (
    describe_adjacencies,
    describe_extremes,
    price_together,
    summarize_runs,
)
from sordino.report.number_formats import format_upper_bound
from sordino.report.page import ADJACENCY_WORDS
from sordino.report.phrasing import state_headline
from sordino.report.price_tables import privacy_lines
from sordino.report.tiles import show_spending
from sordino.report.writing import write_comparison
from tests.report.test_page import Page
from tests.support import toy_dataset, toy_protocol, unseal

WHOLE = toy_protocol(
    rounds=3
)  # 24 records in batches of 24: every step uses all, so bounds are Gaussian
WHOLE = replace(WHOLE, local=replace(WHOLE.local, batch=24), noise=Gaussian(sigma=0.5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list:
    place = tmp_path_factory.mktemp("runs")
    plans = {
        "a": replace(WHOLE, privacy=Privacy(budget=Budget(epsilon=1e4, view="rounds"))),
        "b": replace(WHOLE, seed=4, noise=Gaussian(sigma=1.0)),
        "c": replace(WHOLE, seed=5, rounds=2),
    }
    for name, plan in plans.items():
        train(
            plan, data=toy_dataset(), model="logistic", folder=place / name, workers=1, report=False
        )
    return [place / name for name in plans]


def test_all_are_summed_up_in_the_first_ones_view(runs, tmp_path) -> None:
    page = Page(write_comparison(runs, tmp_path / "side-by-side.html"))
    assert (tmp_path / "side-by-side.html").stat().st_size < 2_000_000
    assert [one["headline"]["view"] for one in page.document["runs"]] == ["rounds"] * 3
    for one, folder in zip(page.document["runs"], runs, strict=True):
        protocol = summarize_runs([folder, runs[0]])[0].run.protocol
        (found,) = [
            each["epsilon"] for each in one["guarantees"]["record"] if each["view"] == "rounds"
        ]
        assert found == certify(protocol, "rounds").epsilon(1e-5)
    assert "ε in the view rounds, at most" in page.text
    assert "noise.sigma" in page.text
    assert "federation.rounds" in page.text
    assert "local.clip" not in page.text  # the same in all


def test_what_they_reveal_together_adds_in_squares(runs) -> None:
    summaries = summarize_runs(runs)
    epsilon, _ = price_together(summaries)
    mu = math.sqrt(sum(summary.main.mu**2 for summary in summaries))
    exact = brentq(
        lambda e: norm.cdf(-e / mu + mu / 2) - math.exp(e) * norm.cdf(-e / mu - mu / 2) - 1e-5,
        0,
        300,
    )
    assert epsilon == pytest.approx(exact, rel=1e-6)


def test_noise_from_one_seed_cancels(runs, tmp_path) -> None:
    louder = replace(WHOLE, noise=Gaussian(sigma=0.7))
    train(
        louder, data=toy_dataset(), model="logistic", folder=tmp_path / "d", workers=1, report=False
    )
    epsilon, text = price_together(summarize_runs([runs[0], tmp_path / "d"]))
    assert epsilon == math.inf
    assert "same seed" in text
    secure = replace(louder, noise=replace(louder.noise, secure=True))
    train(
        secure, data=toy_dataset(), model="logistic", folder=tmp_path / "e", workers=1, report=False
    )
    assert math.isfinite(price_together(summarize_runs([runs[0], tmp_path / "e"]))[0])


@pytest.mark.slow
def test_runs_of_the_same_name_are_told_apart_and_ten_fit(
    runs, tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", *[str(runs[k % 3]) for k in range(10)], "--json"]) == 0
    out, err = capfd.readouterr()
    assert len(json.loads(out)["runs"]) == 10
    assert "Traceback" not in err
    page = Page(tmp_path / "comparison.html")
    assert "a (1)" in page.text
    assert "a (4)" in page.text
    assert (tmp_path / "comparison.html").stat().st_size < 2_000_000
    assert json.loads(out)["runs"] == page.document["runs"]


def test_a_view_that_one_run_lacks_is_not_taken(runs, tmp_path) -> None:
    diverged = Path(shutil.copytree(runs[0], tmp_path / "diverged"))
    text = (diverged / "run.json").read_text().replace('"finished"', '"diverged"')
    (diverged / "run.json").write_text(text)
    unseal(diverged)
    first = replace(WHOLE, seed=9, privacy=Privacy(budget=Budget(epsilon=1e4, view="final")))
    train(
        first, data=toy_dataset(), model="logistic", folder=tmp_path / "f", workers=1, report=False
    )
    assert {summary.headline[0] for summary in summarize_runs([tmp_path / "f", diverged])} == {
        View.SERVER
    }


def test_one_damaged_run_or_too_many_are_refused(runs, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(runs[0]), "nowhere"]) == 2
    assert "nowhere" in capfd.readouterr().err
    assert run(["report", *[str(runs[0])] * 25]) == 2
    assert "2 to 24" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_neighbours_that_differ_are_said_run_by_run_and_one_seed_undoes_any_two(runs) -> None:
    first, second, _ = summarize_runs(runs)
    assert describe_adjacencies([first, second], ["a", "b"]) == [ADJACENCY_WORDS["replace-one"]]
    main = replace(second.main, adjacency="add-or-remove")
    guarantees = {**second.guarantees, "record": [main]}
    other = replace(second, guarantees=guarantees)
    sentences = describe_adjacencies([first, other], ["a", "b"])
    assert [one[:3] for one in sentences[:2]] == ["a: ", "b: "]
    assert "not on one scale" in sentences[2]
    assert price_together([first, other])[0] is None
    # The noise cancels in the difference, whichever neighbours a bound is about.
    plan = replace(other.run.protocol, seed=first.run.protocol.seed)
    same = replace(other, run=replace(other.run, protocol=plan))
    assert price_together([first, same])[0] == math.inf


def test_what_was_vouched_for_stands_beside_every_number_that_rests_on_it(tmp_path) -> None:
    vouched = replace(
        WHOLE,
        local=replace(WHOLE.local, schedule=StageWise(rate=0.3)),
        assumptions=Assumptions(smoothness=0.01),
        privacy=Privacy(budget=Budget(epsilon=1e4, view="final")),
    )
    folders = []
    for name, plan in {"a": vouched, "b": replace(WHOLE, seed=4)}.items():
        train(
            plan,
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / name,
            workers=1,
            report=False,
        )
        folders.append(tmp_path / name)
    condition = "if, as vouched, every minibatch loss is 0.01-smooth"
    first, second = summarize_runs(folders)
    assert first.main.condition == condition
    assert second.main.condition == ""
    page = Page(write_comparison(folders, tmp_path / "side-by-side.html"))
    assert page.document["together"]["assumptions"] == ["every minibatch loss is 0.01-smooth"]
    free = format_upper_bound(first.main.unconditional.epsilon(1e-5))
    assert f"a: the bound holds {condition}. Without that: ε = {free}." in page.text
    assert f"{format_upper_bound(first.main.epsilon(1e-5))} (vouched)" in page.text
    assert condition in price_together([first, second])[1]
    assert condition in describe_extremes([first, second], ["a", "b"])
    assert condition in state_headline(first.main, 1e-5)
    assert condition in show_spending(first).note
    plain = replace(first.run, protocol=replace(vouched, privacy=Privacy()))
    assert (
        f"final {format_upper_bound(first.main.epsilon(1e-5))} ({condition})"
        in privacy_lines(plain)[1]
    )
    assert price_folder(folders[0], 1).condition == condition
