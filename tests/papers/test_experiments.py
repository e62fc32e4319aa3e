"""Experiments whose tables the documentation prints."""

import json
from dataclasses import replace

from experiments import converging_privacy


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
