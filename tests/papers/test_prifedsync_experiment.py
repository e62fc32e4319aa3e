"""The command that remakes PriFedSync's tables: settings as printed, rounds counted, nothing trained twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import prifedsync, prifedsync_cells, prifedsync_results
from experiments.cells import read_rows
from experiments.prifedsync_cells import Cell, find_reached, list_cells, make_protocol
from sordino import Data, Protocol
from sordino.papers.prifedsync_tables import PRINTED


def test_the_cells_are_the_settings_of_the_examples() -> None:
    """The examples were written from the paper by hand; the cells come from the printed tables."""
    for name, probability, sigma, data in (
        ("prifedsync-mnist", 0.5, 0.9, "mnist"),
        ("prifedsync-cifar", 0.5, 1.0, "cifar10"),
    ):
        example = Protocol.load(f"sordino/examples/{name}.toml")
        cell = next(
            one
            for one in list_cells(["table-1", "table-3"], 1, quick=False, lenet=False)
            if (one.data, one.probability, one.sigma) == (data, probability, sigma)
        )
        made = make_protocol(replace(cell, rounds=example.rounds))
        assert replace(made, seed=1230) == example


def test_every_printed_row_is_trained_once() -> None:
    looked = list(list_cells(["table-1", "table-2", "table-3"], 2, quick=True))
    assert [(cell.seed, cell.rounds) for cell in looked] == [(1, 10)] * 3
    cells = list(list_cells(["table-1", "table-2", "table-3"], 2, quick=False))
    assert len(cells) == len(set(cells))
    # 21 printed rows, three of them twice; without noise p x B: 3 + 1 on MNIST, 2 on CIFAR-10.
    private = [one for one in cells if one.sigma > 0]
    assert len(private) == 2 * (len(PRINTED) - 3)
    assert len(cells) - len(private) == 2 * 6


def test_rounds_are_counted_to_the_first_score_at_the_target() -> None:
    assert find_reached([4, 8, 12, 16], [0.2, 0.9, 0.89, 0.95], 0.9) == 8
    assert find_reached([4, 8], [0.2, 0.5], 0.9) is None


def test_a_cell_stops_at_its_target_and_is_not_trained_again(tmp_path, monkeypatch, capsys) -> None:
    cell = Cell(data="mnist", model="lenet5", probability=1.0, sigma=1.0, rounds=8)
    small = replace(
        make_protocol(cell),
        clients=4,
        local=replace(make_protocol(cell).local, steps=6, batch=8),
        data=Data(name="digits", records=100),
        model=replace(make_protocol(cell).model, name="logistic"),
    )

    def make_small(one: Cell) -> Protocol:
        noise = replace(small.noise, multiplier=one.sigma)
        return replace(small, rounds=one.rounds, noise=noise, seed=one.seed)

    monkeypatch.setattr(prifedsync_cells, "make_protocol", make_small)
    monkeypatch.setattr(prifedsync, "make_protocol", make_small)
    monkeypatch.setattr(prifedsync, "SCORED", 2)
    # Reached at once: the private training ends with its first score, the other one does not.
    monkeypatch.setitem(prifedsync.TARGETS, "mnist", 0.0)
    cells = [cell, replace(cell, sigma=0.0)]
    monkeypatch.setattr(prifedsync, "list_cells", lambda *options: iter(cells))
    path = tmp_path / "rows.csv"
    asked = ["--csv", str(path)]
    prifedsync.main(asked)
    private, free = read_rows(path)
    assert (private["scored"], private["reached"]) == ("2", "2")
    assert free["scored"] == "2;4;6;8"
    # Priced for the rounds that were trained.
    price = prifedsync.certify(make_small(replace(cell, rounds=2))).epsilon(1e-5)
    assert price <= float(private["epsilon"]) < price * 1.0001
    monkeypatch.setattr(prifedsync, "measure_cell", lambda one: pytest.fail("trained again"))
    capsys.readouterr()
    prifedsync.main(asked)
    printed = capsys.readouterr().out
    line = next(row for row in printed.splitlines() if row.startswith("| 1 | 1 | 16"))
    # Beside ours the paper's R, accuracies and mu.
    for text in ("| 93 |", "90.03 %", "98.74 %", "2.71"):
        assert text in line
    prifedsync.main([*asked, "--draw", str(tmp_path)])
    # Figure 5 is of sigma 0.75 alone, Figure 1 of p = 0.5: neither was measured.
    assert list(tmp_path.glob("*.png")) == []
    rows = read_rows(path)
    printed_row = next(row for row in PRINTED if row.table == 1)
    prifedsync_results.draw_figure(rows, [printed_row], "figure-1", tmp_path / "one.png")
    assert (tmp_path / "one.svg").stat().st_size > 1000
