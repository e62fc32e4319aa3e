"""Experiments whose tables the documentation prints."""

import csv
import json
import math
from dataclasses import replace

import pytest

from experiments import converging_privacy, noise_and_clients
from sordino import Data, FedAvg, Gaussian, Model, Protocol, StageWise


def test_noise_and_clients_averages_scored_rounds_and_trains_no_cell_twice(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_small(cell) -> Protocol:
        return Protocol(
            seed=cell.seed,
            clients=cell.clients,
            rounds=cell.rounds,
            local=FedAvg(steps=1, batch=4, clip=1.0, schedule=StageWise(rate=0.1)),
            noise=Gaussian(sigma=cell.sigma),
            data=Data(name="digits", records=20),
            model=Model(name="logistic"),
        )

    monkeypatch.setattr(noise_and_clients, "make_protocol", make_small)
    out = tmp_path / "rows.csv"
    asked = ["--steps", "1", "--clients", "2,3", "--sigmas", "0.1", "--out", str(out)]
    # From 100 rounds on, a training scores only every second round or fewer unless it is told to.
    noise_and_clients.main([*asked, "--total", "100"])
    rows = list(csv.DictReader(out.open()))
    assert [row["clients"] for row in rows] == ["2", "3"]
    assert all(math.isfinite(float(row["accuracy"])) for row in rows)
    assert all(float(row["epsilon_rounds"]) < float(row["epsilon_server"]) for row in rows)
    assert "nan" not in capsys.readouterr().out
    monkeypatch.setattr(noise_and_clients, "train_cell", pytest.fail)
    noise_and_clients.main([*asked, "--total", "100"])
    assert len(list(csv.DictReader(out.open()))) == 2


def test_converging_privacy_keeps_rounds_and_epsilons_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(converging_privacy, "ROUNDS", (2, 5))
    base = converging_privacy.FEDERATIONS["breast-cancer"]
    monkeypatch.setattr(
        converging_privacy, "FEDERATIONS", {"breast-cancer": base, "again": replace(base, seed=2)}
    )
    drawn = {}

    def plot(self, x, y, *, label, **options) -> None:
        drawn.setdefault(label, []).append((list(x), list(y)))

    monkeypatch.setattr("matplotlib.axes.Axes.plot", plot)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *args, **options: None)
    out = tmp_path / "rows.json"
    converging_privacy.main(["--out", str(out), "--plot", str(tmp_path / "plot.png")])
    rows = json.loads(out.read_text())
    assert [row["rounds"] for row in rows] == [2, 5, 2, 5]
    for row in rows:
        assert row["epsilon"]["final"] <= row["epsilon"]["rounds"] <= row["epsilon"]["server"]
    assert [x for x, _ in drawn["view rounds"]] == [[2, 5], [2, 5]]
    assert drawn["view final"][0][1] == [row["epsilon"]["final"] for row in rows[2:]]
