"""Experiments whose tables the documentation prints."""

import csv
import json
import math
from dataclasses import replace

import pytest

from experiments import converging_classes, converging_privacy


@pytest.mark.slow
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


@pytest.mark.slow
def test_converging_classes_keeps_its_promise_for_every_number_of_rounds(
    tmp_path, monkeypatch
) -> None:
    base = converging_classes.BASE
    # Few records of little noise: 30 rounds learn something.
    small = replace(
        base, clients=5, data=replace(base.data, name="digits", records=250), noise=base.noise
    )
    monkeypatch.setattr(converging_classes, "BASE", small)
    monkeypatch.setattr(converging_classes, "EPSILON", 50.0)
    out = tmp_path / "rows.csv"
    asked = ["--features", "random-filters", "--rounds", "100,10", "--out", str(out)]
    converging_classes.main(asked)
    early, late = csv.DictReader(out.open())
    assert (early["rounds"], late["rounds"]) == ("10", "100")
    for row in (early, late):
        assert math.isfinite(float(row["accuracy"]))
        assert float(row["final"]) <= float(row["rounds_view"]) < float(row["server"])
        # One limit, whatever the number of rounds, which no price passes.
        assert float(row["limit_of_final"]) == pytest.approx(50.0, rel=0.01)
        assert float(row["final"]) < float(row["limit_of_final"])
    assert float(late["accuracy"]) > float(early["accuracy"])
    assert float(late["final"]) > float(early["final"])
