"""Sweeps: every setting is trained as it would be alone, an interrupted sweep goes on, and tuning is priced soundly."""

import csv
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

import sordino
from sordino import Data, Model, Protocol, UserError, certify
from sordino.cli.main import run
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.renyi import ORDERS
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import View, dumps
from sordino.sweeps import sweep_planning, sweeping
from sordino.sweeps.sweep_planning import draw_trials
from sordino.sweeps.sweep_request import SweepRequest, make_settings, read_over
from sordino.sweeps.sweeping import SweepOptions, run_sweep, sweep
from sordino.sweeps.tuning_price import price_all_runs, price_selection
from tests.support import toy_protocol


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def small_protocol(**changes) -> Protocol:
    return toy_protocol(
        rounds=4,
        data=Data(name="digits", records=14),
        model=Model(name="logistic"),
        **changes,
    )


def answer(capfd, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


def test_every_row_is_the_training_that_train_gives(tmp_path) -> None:
    plan = small_protocol(seed=3)
    swept = sweep(plan, {"local.clip": [0.5, 2.0]}, seeds=2, folder=tmp_path / "s")
    assert [(row.settings["local.clip"], row.seed) for row in swept.rows] == [
        (0.5, 3), (0.5, 4), (2.0, 3), (2.0, 4),
    ]  # fmt: skip
    row = swept.rows[2]
    alone = sordino.train(
        replace(plan, local=replace(plan.local, clip=2.0)), folder=tmp_path / "alone", report=False
    )
    assert row.accuracy == alone.metrics["accuracy"][-1]
    assert row.epsilon == alone.guarantee("server").epsilon(1e-5)
    scores = [row.accuracy for row in swept.rows[2:]]
    assert swept.summary[1].mean == pytest.approx(sum(scores) / 2)
    assert swept.summary[1].spread == pytest.approx(statistics.stdev(scores))


def test_noise_is_calibrated_for_every_epsilon_and_never_overshoots(tmp_path) -> None:
    swept = sweep(small_protocol(), epsilons=[1, 6], view="rounds", folder=tmp_path / "s")
    for row, target in zip(swept.rows, (1, 6), strict=True):
        assert 0.98 * target < row.epsilon <= target
        saved = sordino.Run.load(row.run).protocol
        assert certify(saved, "rounds").epsilon(1e-5) <= target


def test_an_interrupted_sweep_goes_on_and_ends_as_if_it_had_not_been(tmp_path) -> None:
    request = SweepRequest(
        protocol=small_protocol(seed=1), over=(("local.clip", (0.5, 1.0)),), seeds=3
    )
    whole = run_sweep(request, tmp_path / "whole", SweepOptions())

    def stop(number, row) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(request, tmp_path / "cut", SweepOptions(on_row=stop))
    rounds = []
    again = run_sweep(
        request, tmp_path / "cut", SweepOptions(on_round=lambda number, _: rounds.append(number))
    )
    assert 2 not in rounds
    assert [replace(row, run="") for row in again.rows] == [
        replace(row, run="") for row in whole.rows
    ]


def test_a_resumed_sweep_calibrates_nothing_again(tmp_path, monkeypatch) -> None:
    options = {"epsilons": [2.0], "view": "rounds", "folder": tmp_path / "s"}
    first = sweep(small_protocol(), **options)

    def refuse(*args, **kwargs) -> None:
        raise AssertionError("calibrated again")

    monkeypatch.setattr(sweep_planning, "calibrate", refuse)
    assert sweep(small_protocol(), **options).rows == first.rows


def test_the_command_prints_the_contract_and_leaves_csv_and_figures(capfd, tmp_path) -> None:
    Path("p.toml").write_text(dumps(small_protocol(seed=1)))
    typed = ["sweep", "p.toml", "--over", "local.clip=0.5,1", "--seeds", "2", "--out", "s"]
    code, out, err = answer(capfd, *typed, "--json")
    assert code == 0
    assert "left" in err
    document = json.loads(out)
    assert set(document["rows"][0]) >= {
        "settings", "seed", "accuracy", "loss", "epsilon", "view", "run",
    }  # fmt: skip
    assert set(document["summary"][0]) >= {"settings", "mean", "spread"}
    assert "adds up" in document["note"]
    rows = list(csv.DictReader(Path("s/sweep.csv").read_text().splitlines()))
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in document["rows"]]
    assert Path("s/sweep.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in Path("s/sweep.svg").read_text()
    code, out, _ = answer(capfd, "resume", "s")
    assert code == 0
    assert "mean" in out
    assert "adds up" in out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--over", "local.clp=1,2"], "local.clp"),
        (["--over", "local.clip=1,-2"], "local.clip = -2"),
        (["--over", "local.clip"], "KEY=V1,V2"),
        (["--over", "local.clip=1,,2"], "KEY=V1,V2"),
        (["--over", "seed=1,2"], "--seeds"),
        (["--over", "noise.sigma=1,2", "--epsilons", "1"], "calibrated"),
        (["--over", "local.clip=1", "--over", "local.clip=2"], "twice"),
        ([], "--over"),
        (["--epsilons", "1,x"], "1,x"),
        (["--epsilons", "-1"], "above 0"),
        (["--epsilons", "1", "--set", "noise.where=server"], "no noise is enough"),
        (["--epsilons", "1", "--view", "nobody"], "nobody"),
        (["--epsilons", "1", "--seeds", "0"], "at least 1"),
        (["--epsilons", "1", "--set", "data.test=none"], "data.test"),
        (["--epsilons", "1", "--price", "selection"], "--trials"),
        (["--epsilons", "1", "--price", "selection", "--trials", "5"], "--view final"),
        (["--epsilons", "1", "--price", "much"], "much"),
        (["--epsilons", "1", "--engine", "flower"], "flower"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(capfd, options, named) -> None:
    Path("p.toml").write_text(dumps(small_protocol()))
    code, out, err = answer(capfd, "sweep", "p.toml", *options)
    assert (code, out) == (2, "")
    assert named in err
    assert list(Path("runs").glob("*")) == []


def test_a_folder_of_another_sweep_or_of_something_else_is_refused(tmp_path) -> None:
    sweep(small_protocol(), {"local.clip": [1.0]}, folder="s")
    with pytest.raises(UserError, match="differs in over"):
        sweep(small_protocol(), {"local.clip": [2.0]}, folder="s")
    with pytest.raises(UserError, match="differs in protocol, seeds"):
        sweep(small_protocol(seed=9), {"local.clip": [1.0]}, seeds=2, folder="s")
    Path("other").mkdir()
    Path("other/letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"letter\.txt"):
        sweep(small_protocol(), {"local.clip": [1.0]}, folder="other")
    assert [path.name for path in Path("other").iterdir() if path.name != "lock"] == ["letter.txt"]


def test_values_of_tables_and_words_are_read_as_in_the_file() -> None:
    key, values = read_over("federation.participation=everyone,{ poisson = 0.5 }")
    request = SweepRequest(protocol=small_protocol(), over=((key, values),))
    kinds = [type(one.protocol.participation).__name__ for one in make_settings(request)]
    assert kinds == ["Everyone", "Poisson"]


def guarantee(mu: float, view: View = View.FINAL, adjacency: str = "replace-one") -> Guarantee:
    curve = GaussianCurve(mu=mu)
    return Guarantee(view=view, unit="record", method="", curve=curve, adjacency=adjacency)


def test_runs_add_up_as_gaussian_mechanisms_do() -> None:
    price = price_all_runs([guarantee(0.3), guarantee(0.4)], 1e-5)
    assert price.epsilon == pytest.approx(GaussianCurve(mu=0.5).epsilon(1e-5), rel=1e-9)


@pytest.mark.slow
def test_runs_that_are_priced_together_share_no_seed(tmp_path) -> None:
    plan = small_protocol(seed=5)
    swept = sweep(plan, {"local.clip": [0.5, 1.0]}, seeds=2, price="sum", folder=tmp_path / "s")
    assert [row.seed for row in swept.rows] == [5, 6, 7, 8]
    assert swept.tuning is not None
    assert swept.tuning.epsilon > max(row.epsilon for row in swept.rows)


def test_private_selection_costs_what_dp_accounting_says_of_the_costliest_setting() -> None:
    price = price_selection([guarantee(0.2), guarantee(0.5)], 7, 10.0, 1e-5)
    peer = RdpAccountant(list(ORDERS))
    gaussian = dp_event.GaussianDpEvent(2.0)
    peer.compose(dp_event.RepeatAndSelectDpEvent(gaussian, mean=10.0, shape=math.inf))
    assert price.epsilon == pytest.approx(peer.get_epsilon(1e-5), rel=1e-6)
    assert price.epsilon > GaussianCurve(mu=0.5).epsilon(1e-5)


def test_a_divergence_that_overflows_costs_everything_and_not_nothing() -> None:
    class Overflowing(GaussianCurve):
        def rdp(self, order: float) -> float:
            return math.nan

    bad = replace(guarantee(1.0), curve=Overflowing(mu=1.0))
    assert price_selection([bad], 3, 4.0, 1e-5).epsilon == math.inf


def test_prices_of_different_neighbours_are_not_joined() -> None:
    with pytest.raises(UserError, match="neighbouring"):
        price_all_runs([guarantee(1.0), guarantee(1.0, adjacency="add-or-remove")], 1e-5)


def test_selection_draws_a_poisson_number_of_settings_at_random() -> None:
    request = SweepRequest(
        protocol=small_protocol(),
        over=(("local.clip", (1.0, 2.0)),),
        view="final",
        price="selection",
        trials=20.0,
    )
    drawn = [draw_trials(request, 2) for _ in range(400)]
    counts = [len(trials) for trials in drawn]
    # A Poisson law has equal mean and variance; a fixed or a geometric number has not.
    assert abs(np.mean(counts) - 20) < 1.2
    assert 13 < np.var(counts) < 28
    share = np.mean([trial.setting for trials in drawn for trial in trials])
    assert abs(share - 0.5) < 0.03
    assert all(len({trial.seed for trial in trials}) == len(trials) for trials in drawn)


@pytest.mark.slow
def test_a_selection_names_the_best_run_and_its_price(tmp_path) -> None:
    plan = small_protocol(seed=2)
    options = {"view": "final", "price": "selection", "trials": 6.0, "folder": tmp_path / "s"}
    swept = sweep(plan, {"local.clip": [0.5, 1.0]}, **options)
    assert swept.best is not None
    assert swept.best.accuracy == max(row.accuracy for row in swept.rows)
    assert swept.tuning is not None
    assert swept.tuning.epsilon > max(row.epsilon for row in swept.rows)
    # Called again it is the same selection, and not another draw.
    assert sweep(plan, {"local.clip": [0.5, 1.0]}, **options).rows == swept.rows


def own_protocol(**data) -> Protocol:
    """A federation on a file of its own, of which a fifth is held out unless it brings tests."""
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    np.savez("mine.npz", x_train=x, y_train=y, **data)
    return toy_protocol(
        rounds=2, clients=3, data=Data(name="mine.npz", classes=("no", "yes")), model=Model(name="logistic")
    )  # fmt: skip


BROUGHT = {"x_test": np.ones((9, 3)), "y_test": np.arange(9) % 2}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("held-out", "held-out private records, not covered"),
        ("brought", "test records that came with the data"),
        ("public", "public test records"),
    ],
)
def test_a_sweep_says_whose_records_were_scored_wherever_it_is_shown(capfd, kind, words) -> None:
    plan = {
        "held-out": lambda: own_protocol(),
        "brought": lambda: own_protocol(**BROUGHT),
        "public": lambda: replace(small_protocol(), rounds=2),
    }[kind]()
    Path("p.toml").write_text(dumps(plan))
    typed = ["sweep", "p.toml", "--over", "local.clip=0.5,1", "--out", "s"]
    code, out, _ = answer(capfd, *typed, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["scores_covered"] == (kind == "public")
    assert [row["tested_on"] for row in document["rows"]] == [kind, kind]
    assert ("no epsilon covers them" in document["note"]) == (kind != "public")
    _, out, _ = answer(capfd, *typed)
    shown = " ".join(out.split())
    assert words in shown
    assert ("no epsilon covers them" in shown) == (kind != "public")
    rows = list(csv.DictReader(Path("s/sweep.csv").read_text().splitlines()))
    assert [row["tested_on"] for row in rows] == [kind, kind]
    # The writer puts a comment with the text beside its letters' shapes.
    assert words in " ".join(Path("s/sweep.svg").read_text().split())


def test_no_price_is_put_on_a_choice_by_scores_of_private_records(tmp_path, monkeypatch) -> None:
    over = {"local.clip": [0.5, 1.0]}
    selection = {"view": "final", "price": "selection", "trials": 3.0}
    for price in ({"price": "sum"}, selection):
        with pytest.raises(
            UserError, match=r"records of the clients themselves.*leave out --price"
        ):
            sweep(own_protocol(), over, folder=tmp_path / "refused", **price)
    assert not (tmp_path / "refused").exists()
    # Only their owner knows whether test records that were brought are public.
    swept = sweep(own_protocol(**BROUGHT), over, folder=tmp_path / "brought", price="sum")
    assert "only their owner knows" in " ".join(swept.notes)
    # An earlier version began such a sweep: it is not priced at its end either.
    with monkeypatch.context() as patch:
        for module in (sweep_planning, sweeping):
            patch.setattr(module, "refuse_private_scores", lambda request, source: None)
        sweep(own_protocol(), over, folder=tmp_path / "earlier", price="sum")
    with pytest.raises(UserError, match="records of the clients themselves"):
        sweep(own_protocol(), over, folder=tmp_path / "earlier", price="sum")


def test_a_price_in_words_is_never_below_the_number(tmp_path) -> None:
    price = price_all_runs([guarantee(0.3), guarantee(0.4)], 1e-5)
    stated = float(price.sentence.split("at most ")[1].split()[0])
    assert price.epsilon <= stated <= 1.01 * price.epsilon
    assert "delta = 1e-5 " in price.sentence
    assert "no meaningful limit" in price_all_runs([guarantee(40.0)], 1e-5).sentence
